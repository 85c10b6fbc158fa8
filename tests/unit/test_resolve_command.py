"""The command that decides about an epoch in doubt: the dashboard reads what hints of errors contain."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from clonos.driver.resolutions import RequestedResolution
from clonos.errors import SpecError
from clonos.resolve_command import named_epoch, new_code_command, proposes_new_code, resolve_command
from clonos.resources.jobs import ResolveRequest


def test_a_hint_names_its_epoch() -> None:
    hint = f"decide about the epoch: {resolve_command('orders', 'by-hour', 12, 'keep')}."
    assert named_epoch(hint) == ("by-hour", 12, "keep")
    assert named_epoch("run the job again.") is None
    assert not proposes_new_code(hint)
    new_code = f"accept it: {new_code_command('orders')}."
    assert proposes_new_code(new_code)
    assert named_epoch(new_code) is None


@pytest.mark.parametrize(
    "fields",
    [{"query": "out"}, {"epoch": 12}, {"decision": "keep"}, {"decision": "dead-letter", "topic": "a"}],
)
def test_only_new_code_may_hold_for_all_epochs(fields: dict[str, object]) -> None:
    assert ResolveRequest(decision="new-code").epoch is None
    with pytest.raises(ValidationError, match="only new-code may leave out both"):
        ResolveRequest.model_validate({"decision": "new-code", **fields})


@pytest.mark.parametrize("text", ["out:12=keep", "out:12=republish", "out:0=dead-letter:a.b_c", "by-hour:7=new-code"])
def test_the_option_of_a_request_is_what_the_driver_reads(text: str) -> None:
    read = RequestedResolution.parse(text)
    request = ResolveRequest(query=read.query, epoch=read.epoch, decision=read.decision, topic=read.topic or None)
    assert request.option == str(read) == text


@pytest.mark.parametrize("text", ["12=keep", "out:12", "out:12=drop", "out:12=dead-letter", "out:12=keep:topic", ""])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is invalid"):
        RequestedResolution.parse(text)
