"""The reference of the REST API, from its OpenAPI description."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fields import allowed
from markdown_text import NOTE, code, prose, table

_METHODS: Final = ("get", "post", "put", "patch", "delete")


def page(description: Path) -> str:
    """Return the page of all operations and bodies.

    Args:
        description: The file `openapi.json`.
    """
    api = json.loads(description.read_text())
    lines = [
        "# REST API",
        "",
        NOTE,
        "",
        "The description in OpenAPI is `GET /api/v1/openapi.json`. Requests, outages and retries: "
        "[control plane](../control-plane.md). Errors are problems (RFC 9457), whose `type` is the address of a page: "
        "[errors](../errors.md).",
        "",
    ]
    for tag, operations in _by_tag(api).items():
        lines += [f"## {tag.capitalize()}", ""]
        for method, path, operation in operations:
            lines += _operation(method, path, operation)
    lines += ["## Bodies", ""]
    for name, schema in api["components"]["schemas"].items():
        lines += _schema(name, schema)
    return "\n".join(lines)


def _by_tag(api: Mapping[str, Any]) -> Mapping[str, list[tuple[str, str, Mapping[str, Any]]]]:
    operations: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in api["paths"].items():
        for method in _METHODS:
            if method in methods:
                tag = next(iter(methods[method].get("tags", [])), "other")
                operations.setdefault(tag, []).append((method.upper(), path, methods[method]))
    return operations


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {method} {path}"
    yield ""
    yield prose(operation.get("description") or operation.get("summary", ""))
    yield ""
    roles = sorted({role for entry in operation.get("security", []) for names in entry.values() for role in names})
    facts = [f"Role: {', '.join(code(role) for role in roles)}." if roles else "Needs no role."]
    if body := operation.get("requestBody"):
        facts.append(f"Body: {_contents(body)}.")
    answers = [
        f"{code(status)} {_contents(response)}".strip()
        for status, response in operation["responses"].items()
        if "$ref" not in response
    ]
    yield " ".join([*facts, f"Responses: {', '.join(answers)}; problems."])
    yield ""
    if parameters := operation.get("parameters"):
        rows = [
            (
                code(parameter["name"]),
                f"{parameter['in']}{', required' if parameter.get('required') else ''}",
                _takes(parameter["schema"]),
                prose(parameter.get("description", "")),
            )
            for parameter in parameters
            if "schema" in parameter
        ]
        yield table(["parameter", "in", "takes", "meaning"], rows)
        yield ""


def _contents(message: Mapping[str, Any]) -> str:
    names = dict.fromkeys(_takes(content.get("schema", {})) for content in message.get("content", {}).values())
    return " or ".join(name for name in names if name)


def _takes(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_takes(part) for part in schema["anyOf"] if part.get("type") != "null"))
    if schema.get("type") == "array":
        return f"list of {_takes(schema.get('items', {})) or 'values'}"
    return allowed(schema)


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    text = schema.get("description", "")
    # A name with a leading underscore would be another anchor.
    yield f"### {name} {{#{name.lower()}}}"
    yield ""
    yield prose(text)
    yield ""
    if "enum" in schema:
        yield allowed(schema)
        yield ""
    if properties := schema.get("properties"):
        required = schema.get("required", ())
        rows = [
            (
                code(field),
                _takes(part),
                "required" if field in required else code(part.get("default") if part.get("default") else ""),
                prose(part.get("description", "")),
            )
            for field, part in properties.items()
        ]
        yield table(["field", "takes", "default", "meaning"], rows)
        yield ""
