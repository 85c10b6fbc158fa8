"""The tree of errors: as documented, and whole after every journey."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos import errors
from clonos.carried import carry, uncarry
from clonos.errors import ClonosError, EpochFailed, UserError

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, ClonosError)]


def documented() -> dict[str, tuple[str, int | None]]:
    """Class → (parent, exit code) in the module's docstring; a class without a code has its parent's."""
    found: dict[str, tuple[str, int | None]] = {"ClonosError": ("Exception", 1)}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([ │]*)[├└]── (.*)$", line)
        if match is None:
            continue
        depth, rest = len(match.group(1)) // 4, match.group(2)
        code = re.search(r"exit (\d)", rest)
        names = re.match(r"[A-Z]\w+(, [A-Z]\w+)*", rest)
        assert names, line
        del path[max(depth - 1, 0) :]
        parent = path[-1][1] if path else "ClonosError"
        for name in names.group().split(", "):
            found[name] = (parent, int(code.group(1)) if code else None)
        path.append((depth, names.group().split(", ")[-1]))
    return found


def test_the_docstring_tree_is_the_tree() -> None:
    tree = documented()
    assert set(tree) == {one.__name__ for one in CLASSES}
    for one in CLASSES:
        parent, code = tree[one.__name__]
        while code is None:
            code = tree[parent][1]
            parent = tree[parent][0]
        assert one.__mro__[1].__name__ == tree[one.__name__][0], one
        assert one.exit_code == code, one


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
