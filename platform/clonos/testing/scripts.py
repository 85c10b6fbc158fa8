"""Replaces the external calls of services in tests by prepared answers."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import inspect
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pyspark import cloudpickle

from clonos.causal import service as services
from clonos.causal.service import Service
from clonos.causal.standin import replace

Answers = Mapping[Any, Any] | Sequence[Any] | Callable[..., Any]


class Unscripted(BaseException):
    """A service was called with arguments that have no answer in its script, or after the last answer in a sequence.

    It is not an `Exception`, so that neither a retry nor an ``except Exception`` of the code under test hides it.
    """


@dataclass(frozen=True)
class _After:
    seconds: float
    answer: Any


def after(seconds: float, answer: Any) -> Any:
    """Return an answer (or error) for `script` that the service returns after `seconds`, to test timeouts."""
    return _After(seconds, answer)


def script(service: Callable[..., Any], answers: Answers) -> Script:
    """Replace the external call of a service by prepared answers, inside a context.

    Timeouts, retries, ``on_outage`` (but nothing waits in a test) and the sharing of equal arguments work as in
    production. The answers also apply in the Python workers of a local session, for queries that are started inside the
    context.

    Args:
        service: A ``@clonos.service``, or ``clonos.clock``.
        answers: A mapping from the argument (several: a tuple) to the answer, a sequence of answers in the order of
            calls, or a function. An answer that is an exception is raised.

    Example::

        with script(is_banned, {"word": True, "slow": after(5, True), "bad": ConnectionError()}) as scripted:
            assert judge.function("word") == {"banned": True}
        assert scripted.calls == [("word",)]

    Raises:
        TypeError: `service` is not a service, or `answers` has another type.
    """
    if service is services.clock:
        service = services._clock_at
    if not isinstance(service, Service):
        raise TypeError(f"{service!r} is not a @clonos.service")
    if isinstance(answers, str | bytes) or not (callable(answers) or isinstance(answers, Mapping | Sequence)):
        raise TypeError(f"answers of {service.name} must be a mapping, a sequence or a function, not {answers!r}")
    return Script(service, answers)


class Script:
    """The prepared answers of one service while they are in use; `script` creates it.

    The calls are recorded in a file, to which Python workers append theirs.
    """

    def __init__(self, service: Service[..., Any], answers: Answers) -> None:
        self._name = service.name
        self._function = service.function
        self._answers = answers
        self._journal: Path | None = None
        self._calls: list[tuple[Any, ...]] = []
        self._stack = contextlib.ExitStack()

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        """The arguments of each call so far, retries included. Keyword arguments are listed at their position."""
        if self._journal is not None:
            lines = self._journal.read_bytes().splitlines()
            self._calls = [cloudpickle.loads(base64.b64decode(line)) for line in lines]
        return self._calls

    def __enter__(self) -> Self:
        """Take the service's place."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="clonos-script-"))
        self._journal = Path(folder) / "calls"
        self._journal.touch()
        answerer = _Answerer(self._name, self._function, self._answers, self._journal)
        self._stack.enter_context(replace(self._name, answerer))
        return self

    def __exit__(self, *_exc: object) -> None:
        """Restore the service; `calls` keeps its value."""
        _ = self.calls
        self._journal = None
        self._stack.close()


@dataclass(frozen=True)
class _Answerer:
    """The scripted function, here or in a Python worker."""

    name: str
    function: Callable[..., Any]
    answers: Answers
    journal: Path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        passed = (*bound.args, *bound.kwargs.values())
        bound.apply_defaults()
        number = self._note(passed)
        if isinstance(self.answers, Mapping):
            answer = self._mapped(self.answers, passed, (*bound.args, *bound.kwargs.values()))
        elif callable(self.answers):
            answer = self.answers(*args, **kwargs)
        elif number < len(self.answers):
            answer = self.answers[number]
        else:
            raise Unscripted(f"The script of {self.name} has {len(self.answers)} answers; this is call {number + 1}.")
        return _given(answer)

    def _note(self, passed: tuple[Any, ...]) -> int:
        """Store the call; return the number of calls before it."""
        packed: bytes = cloudpickle.dumps(passed)  # type: ignore[no-untyped-call]
        line = base64.b64encode(packed) + b"\n"
        with self.journal.open("ab+") as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)  # threads and workers take turns
            journal.seek(0)
            number = journal.read().count(b"\n") if isinstance(self.answers, Sequence) else 0
            journal.write(line)
        return number

    def _mapped(self, answers: Mapping[Any, Any], passed: tuple[Any, ...], whole: tuple[Any, ...]) -> Any:
        """Return the answer for the passed arguments, or for all arguments including defaults."""
        candidates: list[Any] = [passed, whole]
        candidates += [arguments[0] for arguments in (passed, whole) if len(arguments) == 1]
        # By comparison, since arguments such as lists cannot be looked up.
        for key, answer in answers.items():
            if any(key == candidate for candidate in candidates):
                return answer
        known = ", ".join(repr(key) for key in answers) or "nothing"
        raise Unscripted(f"The script of {self.name} has no answer for {passed!r}; it has one for: {known}.")


def _given(answer: Any) -> Any:
    if isinstance(answer, _After):
        time.sleep(answer.seconds)
        answer = answer.answer
    if isinstance(answer, BaseException) or (isinstance(answer, type) and issubclass(answer, BaseException)):
        raise answer
    return answer
