"""Log lines of this process, on stderr: as text or as JSON, each with its job, generation, query, epoch and task.

``CLONOS_LOG_FORMAT`` is ``console`` or ``json``, ``CLONOS_LOG_LEVEL`` is ``debug``, ``info``, ``warning`` or ``error``.
Lines of the standard library's ``logging``, from the job or other libraries, look the same. If the job has configured
``logging`` or structlog itself, Clonos changes neither.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO, cast

import structlog

from clonos.telemetry.redaction import redact, redact_text

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Fields = Callable[[], Mapping[str, object]]

_Event = MutableMapping[str, Any]
# PySpark writes each refused query as JSON with the JVM's whole stack. The job's own error says the same.
_REPEATING_LIBRARY: Final = "DataFrameQueryContextLogger"
# They log every call from the JVM, or every request, at level INFO.
_VERBOSE_LIBRARIES: Final = ("py4j", "httpx")

_process_fields: dict[str, object] = {}


def bind_fields(**fields: object) -> None:
    """Set fields that every later log line of this process has, in all threads."""
    _process_fields.update(fields)


def configure_logs(log_format: LogFormat, level: LogLevel, *, fields: Fields | None = None) -> None:
    """Send the log lines of this process to stderr, without those below `level`.

    The format is ``console`` for people, or ``json``: one object a line. `fields` returns further fields at the time of
    writing, such as the epoch of a Spark task.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        _add_fields(fields),
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[structlog.typing.Processor]
    if log_format == "json":
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        # Without the values of local variables, which may be secrets.
        plain = structlog.dev.plain_traceback
        renderers = [structlog.dev.ConsoleRenderer(colors=coloured, exception_formatter=plain)]
    out = cast("TextIO", _Stderr())
    if not structlog.is_configured():
        structlog.configure(
            processors=[*shared, _redact_event, *renderers],
            wrapper_class=structlog.make_filtering_bound_logger(number),
            logger_factory=structlog.WriteLoggerFactory(out),
        )
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(out)
        # Lines of the standard library keep their logger's name and the fields passed as `extra`.
        foreign: list[structlog.typing.Processor] = [*shared]
        foreign += [structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder(), _redact_event]
        handler.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=foreign,
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
            )
        )
        root.addHandler(handler)
        root.setLevel(number)
        for name in _VERBOSE_LIBRARIES:
            logging.getLogger(name).setLevel(max(number, logging.WARNING))
        logging.getLogger(_REPEATING_LIBRARY).disabled = True


def _redact_event(_logger: Any, _method: str, event: _Event) -> _Event:
    plain = {name: value for name, value in event.items() if name != "exc_info" and not name.startswith("_")}
    return {**event, **redact(plain)}


def environment() -> dict[str, str]:
    """Environment variables that make a Python worker log in this process's format."""
    return {name: os.environ[name] for name in ("CLONOS_LOG_FORMAT", "CLONOS_LOG_LEVEL") if name in os.environ}


def _add_fields(fields: Fields | None) -> structlog.typing.Processor:
    def add(_logger: Any, _method: str, event: _Event) -> _Event:
        for name, value in {**_process_fields, **(fields() if fields else {})}.items():
            event.setdefault(name, value)
        return event

    return add


class _Stderr:
    """Writes to the current `sys.stderr`, which a live view replaces temporarily."""

    def write(self, text: str) -> int:
        return sys.stderr.write(redact_text(text))  # also hides secrets in rendered tracebacks

    def flush(self) -> None:
        sys.stderr.flush()
