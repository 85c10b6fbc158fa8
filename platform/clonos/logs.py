"""Log lines of this process, on stderr: for people or as JSON, each with what it is about.

``CLONOS_LOG_FORMAT`` is ``console`` or ``json``, ``CLONOS_LOG_LEVEL`` is ``debug``, ``info``, ``warning`` or ``error``.
Lines of the standard library's ``logging`` (a job's own, other libraries') look the same, unless the job has
configured ``logging`` or structlog itself: what it chose stays.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO, cast

import structlog

from clonos.redaction import redact, redact_text

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Fields = Callable[[], Mapping[str, object]]

_Event = MutableMapping[str, Any]
# These tell of every call from the JVM and of every request at the level of information.
_CHATTY: Final = ("py4j", "httpx")

_process: dict[str, object] = {}


def about(**fields: object) -> None:
    """Say what every line of this process is about, whichever thread writes it."""
    _process.update(fields)


def configure_logs(log_format: LogFormat, level: LogLevel, *, fields: Fields | None = None) -> None:
    """Send the log lines of this process to stderr.

    Args:
        log_format: For people, or one JSON object a line.
        level: What is less is left out.
        fields: What a line is about at the moment it is written, such as the epoch of a Spark task.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        _about(fields),
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    shown: list[structlog.typing.Processor]
    if log_format == "json":
        shown = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        # Without the values of local variables, which may be secrets.
        plain = structlog.dev.plain_traceback
        shown = [structlog.dev.ConsoleRenderer(colors=coloured, exception_formatter=plain)]
    out = cast("TextIO", _Stderr())
    if not structlog.is_configured():
        structlog.configure(
            processors=[*shared, _redacted, *shown],
            wrapper_class=structlog.make_filtering_bound_logger(number),
            logger_factory=structlog.WriteLoggerFactory(out),
        )
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(out)
        # Nothing of a foreign line is lost: its logger's name and whatever was passed as `extra`.
        foreign: list[structlog.typing.Processor] = [*shared]
        foreign += [structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder(), _redacted]
        handler.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=foreign,
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *shown],
            )
        )
        root.addHandler(handler)
        root.setLevel(number)
        for name in _CHATTY:
            logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _redacted(_logger: Any, _method: str, event: _Event) -> _Event:
    plain = {name: value for name, value in event.items() if name != "exc_info" and not name.startswith("_")}
    return {**event, **redact(plain)}


def environment() -> dict[str, str]:
    """What a Python worker elsewhere must have in its environment to write lines like this process's."""
    return {name: os.environ[name] for name in ("CLONOS_LOG_FORMAT", "CLONOS_LOG_LEVEL") if name in os.environ}


def _about(fields: Fields | None) -> structlog.typing.Processor:
    def add(_logger: Any, _method: str, event: _Event) -> _Event:
        for name, value in {**_process, **(fields() if fields else {})}.items():
            event.setdefault(name, value)
        return event

    return add


class _Stderr:
    """Whatever stderr is at the moment of writing: a live view takes it over for a while."""

    def write(self, text: str) -> int:
        return sys.stderr.write(redact_text(text))  # what was written out since: tracebacks

    def flush(self) -> None:
        sys.stderr.flush()
