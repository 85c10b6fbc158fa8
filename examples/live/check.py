"""Checker of this example: each acknowledged payment has one record, in the order of its source partition, with the
risk that follows from the payment.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from clonos_demo.evidence import Evidence, Sourced
from clonos_demo.example import Example
from clonos_demo.verdict import Fault, Findings, Verdict, json_record, once_in_order, readable


class Contradiction(StrEnum):
    """What cannot be."""

    OTHER_PAYMENT = "record that does not agree with its payment"


class Payment(msgspec.Struct, frozen=True):
    """The value of a record in ``payments``."""

    payment: str
    card: str
    cents: int


class Scored(Sourced, frozen=True):
    """The value of a record in ``scored``."""

    payment: str
    card: str
    cents: int
    risk: int


_read = json_record(Scored)


def check(evidence: Evidence) -> Verdict:
    """Judge the evidence."""
    findings = Findings()
    expected = {sent.position: msgspec.json.decode(sent.value, type=Payment) for sent in evidence.sent}
    seen = once_in_order("scored record", readable(evidence.output("scored"), _read, findings), findings)
    for position, payment in expected.items():
        scored = seen.get(position)
        if scored is None:
            findings.add(Fault.LOST, f"{payment.payment} of {tuple(position)}")
        elif (scored.payment, scored.card, scored.cents, scored.risk) != (
            payment.payment,
            payment.card,
            payment.cents,
            (payment.cents // 100 + 7 * int(payment.card[1:])) % 100,
        ):
            findings.add(Contradiction.OTHER_PAYMENT, f"{scored} of {payment}")
    for position in seen.keys() - expected.keys():
        findings.add(Contradiction.OTHER_PAYMENT, f"{seen[position]} of no acknowledged payment")
    return findings.verdict(records_in=len(expected), expected=len(expected), published=len(evidence.output("scored")))


EXAMPLE = Example(name="live", source="payments", outputs=("scored",), check=check, live=True, per_second=200.0)
