"""The references of `job.yaml`, `cluster.yaml` and environment variables, from their models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fields import allowed, default_of, model_of, summary
from markdown_text import NOTE, code, prose, table
from pydantic import BaseModel

from clonos.documents import meanings
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.spec import JobSpec
from clonos.settings import Settings
from clonos_api.settings import ApiSettings

# The user writes a unit: `500ms`, `512m`.
_UNITS = {"ms": "duration", "s": "duration", "mb": "size"}
_HEAD = ["field", "takes", "default", "meaning"]


def job_page() -> str:
    """Return the fields of `job.yaml`."""
    return _document(
        JobSpec,
        "job.yaml",
        "An example, units and what takes precedence: [reference](../reference.md#jobyaml). The fields of `spec` are "
        "also arguments of `@clonos.job`, in snake case, except `standby`.",
    )


def cluster_page() -> str:
    """Return the fields of `cluster.yaml`."""
    return _document(
        ClusterSpec, "cluster.yaml", "An example and how to use it: [reference](../reference.md#clusteryaml)."
    )


def settings_page() -> str:
    """Return the environment variables of all processes, and of the control plane."""
    parts = [
        "# Settings",
        "",
        NOTE,
        "",
        "Settings are environment variables. Variables of Kafka with examples: [reference](../reference.md#settings).",
        "",
        "## All processes",
        "",
        table(["variable", "takes", "default", "meaning"], _variables(Settings, "CLONOS_")),
        "## The control plane",
        "",
        "Durations and sizes take a unit (`10s`, `500ms`, `50m`); plain numbers are seconds and bytes.",
        "",
        table(["variable", "takes", "default", "meaning"], _variables(ApiSettings, "CLONOS_API__")),
    ]
    return "\n".join(parts)


def _document(model: type[BaseModel], title: str, text: str) -> str:
    return "\n".join([f"# {title}", "", NOTE, "", text, "", table(_HEAD, _fields(model, ""))])


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    schema = model.model_json_schema()
    yield from _rows(model, prefix, schema, schema.get("$defs", {}))


def _rows(
    model: type[BaseModel], prefix: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    texts = meanings(model)
    for name, field in model.model_fields.items():
        alias = field.alias or name
        part = model_of(field.annotation)
        if part is not None:
            yield code(prefix + alias), "", "", prose(texts.get(name, "") or summary(part))
            yield from _rows(part, f"{prefix}{alias}.", definitions[part.__name__], definitions)
            continue
        takes = _UNITS.get(name.rpartition("_")[2]) or allowed(schema["properties"][alias])
        yield code(prefix + alias), takes, default_of(model, name), prose(texts.get(name, "")).replace(", in MiB", "")


def _variables(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})

    def rows(part: type[BaseModel], prefix: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
        texts = meanings(part)
        for name, field in part.model_fields.items():
            child = model_of(field.annotation)
            if child is not None:
                yield from rows(child, f"{prefix}{name.upper()}__", definitions[child.__name__])
                continue
            takes = allowed(schema["properties"][name])
            yield code(prefix + name.upper()), takes, default_of(part, name), prose(texts.get(name, ""))

    yield from rows(model, prefix, schema)
