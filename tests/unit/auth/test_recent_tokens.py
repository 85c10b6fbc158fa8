"""The cache of tokens that were valid recently: bounded, and without the tokens' texts."""

from __future__ import annotations

from clonos_api.auth.recent_tokens import RecentTokens


def test_the_oldest_tokens_are_forgotten() -> None:
    recent = RecentTokens(entries=2)
    for number in (1, 2, 1, 3):
        recent.remember(f"secret-{number}", str(number))
    assert [recent.find(f"secret-{number}") for number in (1, 2, 3)] == ["1", None, "3"]
    assert len(recent) == 2
    recent.forget("secret-1")
    recent.forget("never seen")
    assert recent.find("secret-1") is None
    assert "secret" not in repr(vars(recent))
