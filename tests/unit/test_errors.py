"""The tree of errors: exit codes, slugs and texts, the generated page, and errors that cross processes."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos import errors
from clonos.carried_errors import carry, uncarry
from clonos.errors import CLASSES, ClonosError, EpochFailed, UserError
from clonos.resources.failures import domain_of


def test_the_error_page_holds_the_generated_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    assert errors.markdown() in page, "python -m clonos.errors prints the generated part of docs/errors.md"


def test_classes_lists_every_error_of_the_module() -> None:
    defined = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ClonosError)}
    assert set(CLASSES) == defined


def test_exit_codes_are_unique_and_in_the_range_of_their_family() -> None:
    codes = [cls.exit_code for cls in CLASSES]
    assert len(set(codes)) == len(codes)
    assert not {0, 2} & set(codes), "reserved for success and for an invalid command line"
    for family, family_codes in (
        (UserError, {*range(10, 30), *range(120, 125)}),
        (errors.EnvironmentFault, {*range(30, 50), *range(100, 115)}),
        (errors.ConsistencyError, range(50, 70)),
        (errors.ControlPlaneError, range(80, 90)),
        (errors.RequestRejected, range(90, 100)),
    ):
        assert all(cls.exit_code in family_codes for cls in CLASSES if issubclass(cls, family))


def test_only_families_have_no_default_hint() -> None:
    assert {cls for cls in CLASSES if not cls.hint_default} == {
        ClonosError,
        UserError,
        errors.EnvironmentFault,
        errors.ConsistencyError,
        errors.ControlPlaneError,
        errors.RequestRejected,
    }


def test_slugs_are_unique_kebab_case() -> None:
    slugs = [vars(cls).get("slug") for cls in CLASSES]
    assert None not in slugs
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", str(slug)) for slug in slugs)


def test_user_and_consistency_errors_are_never_retried() -> None:
    assert not any(cls.retry for cls in CLASSES if issubclass(cls, UserError | errors.ConsistencyError))


@pytest.mark.parametrize("cls", CLASSES)
def test_pickle_preserves_all_parts(cls: type[ClonosError]) -> None:
    for error in (cls("what", kept="kept", hint="hint"), cls("what")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is cls
        assert (copy.what, copy.kept, copy.hint) == (error.what, error.kept, error.hint)
        assert str(copy) == str(error)


def test_text_omits_empty_parts() -> None:
    assert str(ClonosError("what")) == "what"
    assert str(ClonosError("what", kept="k", hint="h")) == "what\nKept safe: k\nWhat to do: h"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@given(st.sampled_from(CLASSES), texts, texts, texts)
def test_a_carried_error_keeps_its_class_and_parts(cls: type[ClonosError], what: str, kept: str, hint: str) -> None:
    sent = cls(what, kept=kept, hint=hint)
    received = uncarry(f"Traceback\n  x\n{carry(sent)}\n\tat org.apache.spark")
    if "clonos-error:" not in what + kept + hint:
        assert received is not None
        assert type(received) is cls
        assert (received.what, received.kept, received.hint) == (sent.what, sent.kept, sent.hint)


@pytest.mark.parametrize(
    "text", ["", "no error", "clonos-error:", "clonos-error:AAAA", "clonos-error:kw==", "clonos-error:A"]
)
def test_uncarry_ignores_text_without_an_error(text: str) -> None:
    assert uncarry(text) is None


def test_a_subclass_of_another_module_arrives_as_epoch_failed() -> None:
    class Elsewhere(EpochFailed):
        slug = "elsewhere"

    assert type(uncarry(str(carry(Elsewhere("what"))))) is EpochFailed


def test_the_text_of_a_carried_error_is_readable() -> None:
    assert str(carry(EpochFailed("it broke"))).startswith("it broke\nKept safe: ")


def test_each_typed_error_names_who_must_fix_it() -> None:
    assert {cls for cls in CLASSES if domain_of(cls) == "internal"} == {ClonosError}
    assert {domain_of(cls) for cls in CLASSES if issubclass(cls, UserError)} == {"user"}
