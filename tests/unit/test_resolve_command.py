"""The command that decides about an epoch in doubt: the dashboard reads what hints of errors contain."""

from __future__ import annotations

import pytest

from clonos.driver.resolutions import RequestedResolution
from clonos.errors import SpecError
from clonos.resolve_command import named_epoch, resolve_command
from clonos.resources.jobs import ResolveRequest


def test_a_hint_names_its_epoch() -> None:
    hint = f"decide about the epoch: {resolve_command('orders', 'by-hour', 12, 'keep')}."
    assert named_epoch(hint) == ("by-hour", 12, "keep")
    assert named_epoch("run the job again.") is None


@pytest.mark.parametrize("text", ["out:12=keep", "out:12=republish", "out:0=dead-letter:a.b_c", "by-hour:7=new-code"])
def test_the_option_of_a_request_is_what_the_driver_reads(text: str) -> None:
    read = RequestedResolution.parse(text)
    request = ResolveRequest(query=read.query, epoch=read.epoch, decision=read.decision, topic=read.topic or None)
    assert request.option == str(read) == text


@pytest.mark.parametrize("text", ["12=keep", "out:12", "out:12=drop", "out:12=dead-letter", "out:12=keep:topic", ""])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is invalid"):
        RequestedResolution.parse(text)
