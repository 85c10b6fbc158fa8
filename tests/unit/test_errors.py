"""The tree of errors: as documented, and whole after every journey."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos import errors
from clonos.carried import carry, uncarry
from clonos.errors import ClonosError, EpochFailed, UserError

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, ClonosError)]


def documented() -> dict[str, tuple[str, int]]:
    """Class → (parent, exit code) in the module's docstring."""
    found: dict[str, tuple[str, int]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([ │├└─]*)([A-Z]\w+) .* (\d+)$", line)
        if match is None:
            continue
        depth, name = len(match.group(1)) // 4, match.group(2)
        del path[depth:]
        found[name] = (path[-1] if path else "Exception", int(match.group(3)))
        path.append(name)
    return found


def test_the_docstring_tree_is_the_tree() -> None:
    assert documented() == {one.__name__: (one.__mro__[1].__name__, one.exit_code) for one in CLASSES}


def test_each_has_an_exit_code_of_its_own_in_its_range() -> None:
    codes = [one.exit_code for one in CLASSES]
    assert len(set(codes)) == len(codes)
    assert not {0, 2} & set(codes), "those of a success and of a wrong command line"
    for root, codes_of in (
        (UserError, range(10, 30)),
        (errors.EnvironmentFault, range(30, 50)),
        (errors.ConsistencyError, range(50, 70)),
        (errors.StoreError, range(80, 90)),
        (errors.RequestRefused, range(90, 100)),
    ):
        assert all(one.exit_code in codes_of for one in CLASSES if issubclass(one, root))


def test_each_that_ends_a_run_says_what_to_do() -> None:
    """Those without a hint of their own are named where they are raised, because it depends on what is wrong."""
    without = {one for one in CLASSES if not one.hint_default}
    assert without == {
        ClonosError,
        UserError,
        errors.EnvironmentFault,
        errors.ConsistencyError,
        errors.StoreError,
        errors.RequestRefused,
        errors.SessionUnfit,
        errors.SourceNotRepeatable,
        errors.JobUnknown,
    }


def test_the_page_of_errors_lists_all() -> None:
    """`docs/errors.md`: exit code, slug and class."""
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `([a-z-]+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert rows == sorted(
        ((str(one.exit_code), one.slug, one.__name__) for one in CLASSES), key=lambda row: int(row[0])
    )


def test_slugs_are_unique_and_stable_words() -> None:
    slugs = [vars(one).get("slug") for one in CLASSES]
    assert None not in slugs
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", str(slug)) for slug in slugs)


def test_errors_of_the_user_are_never_retried() -> None:
    assert not any(one.retry for one in CLASSES if issubclass(one, UserError | errors.ConsistencyError))


@pytest.mark.parametrize("cls", CLASSES)
def test_pickle_keeps_all_parts(cls: type[ClonosError]) -> None:
    for error in (cls("what", kept="kept", hint="hint"), cls("what")):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is cls
        assert (back.what, back.kept, back.hint) == (error.what, error.kept, error.hint)
        assert str(back) == str(error)


def test_text_leaves_out_what_is_empty() -> None:
    assert str(ClonosError("what")) == "what"
    assert str(ClonosError("what", kept="k", hint="h")) == "what\nKept safe: k\nWhat to do: h"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@given(st.sampled_from(CLASSES), texts, texts, texts)
def test_carried_errors_arrive_whole(cls: type[ClonosError], what: str, kept: str, hint: str) -> None:
    sent = cls(what, kept=kept, hint=hint)
    got = uncarry(f"Traceback\n  x\n{carry(sent)}\n\tat org.apache.spark")
    if "clonos-error:" not in what + kept + hint:
        assert got is not None
        assert type(got) is cls
        assert (got.what, got.kept, got.hint) == (sent.what, sent.kept, sent.hint)


@pytest.mark.parametrize(
    "text", ["", "no error", "clonos-error:", "clonos-error:AAAA", "clonos-error:kw==", "clonos-error:A"]
)
def test_what_carries_nothing(text: str) -> None:
    assert uncarry(text) is None


def test_an_error_defined_elsewhere_fails_the_epoch() -> None:
    class Elsewhere(EpochFailed):
        slug = "elsewhere"

    got = uncarry(str(carry(Elsewhere("what"))))
    assert type(got) is EpochFailed


def test_the_text_is_for_humans_too() -> None:
    assert str(carry(EpochFailed("it broke"))).startswith("it broke\nKept safe: ")
