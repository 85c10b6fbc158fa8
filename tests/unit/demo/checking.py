"""What the tests of the examples' checkers share."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from clonos_demo.evidence import Published
from clonos_demo.verdict import Verdict

Value = dict[str, Any]


def published(topic: str, values: list[Value]) -> list[Published]:
    return [Published(topic, 0, offset, json.dumps(value).encode()) for offset, value in enumerate(values)]


def faults(verdict: Verdict) -> set[StrEnum]:
    return {finding.fault for finding in verdict.findings}


def clean_verdict(*, records_in: int, records: int) -> Verdict:
    return Verdict(
        records_in=records_in,
        expected=records,
        published=records,
        duplicates=0,
        lost=0,
        order_breaks=0,
        contradictions=0,
        pending=0,
    )
