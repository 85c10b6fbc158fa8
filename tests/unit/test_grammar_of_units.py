"""One grammar of durations: `job.yaml`, settings and the command line."""

from __future__ import annotations

import re

import pytest
from pydantic import TypeAdapter

from clonos.cli.options import seconds
from clonos.errors import SpecError
from clonos.jobs.spec import Trigger
from clonos.units import Seconds, parse_duration, parse_size
from clonos_api.settings import Duration

GOOD = {"500ms": 0.5, "10s": 10, "5min": 300, "5m": 300, "1h30m": 5_400, "1h30min": 5_400, "30d": 2_592_000, "0": 0}
BAD = ["", "5", "h", "1x", "-1s", "1h30", "1h30q", "1.2.3s", "m5", "1h1h1h1h1h1h1h"]


@pytest.mark.parametrize("text", GOOD)
def test_a_duration_means_the_same_everywhere(text: str) -> None:
    assert parse_duration(text) == TypeAdapter(Duration).validate_python(text) == GOOD[text]
    if GOOD[text] <= 3_600:
        assert Trigger.model_validate({"interval": text}).interval_ms == GOOD[text] * 1_000
    if GOOD[text] >= 1:
        assert seconds(text, "--expires") == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_what_is_not_a_duration_is_refused_everywhere(text: str) -> None:
    with pytest.raises(ValueError, match="write a number with ms, s, m"):
        parse_duration(text)
    with pytest.raises(SpecError, match="is not a duration"):
        seconds(text, "--expires")
    with pytest.raises(ValueError, match="interval"):
        Trigger.model_validate({"interval": text})


@pytest.mark.parametrize("text", [*GOOD, *BAD])
def test_the_pattern_of_the_schema_is_the_grammar(text: str) -> None:
    pattern = TypeAdapter(Seconds).json_schema()["pattern"]
    assert (re.search(pattern, text) is not None) == (text in GOOD or text == "1h1h1h1h1h1h1h")


def test_a_size_has_one_unit() -> None:
    assert parse_size("512m") == 512 << 20
    with pytest.raises(ValueError, match="write a number with k, m or g"):
        parse_size("1g1m")
