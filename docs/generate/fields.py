"""Fields of pydantic models as rows. Their meaning is the text below each field in its class."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined


def summary(model: type[BaseModel]) -> str:
    """Return the first paragraph of a model's docstring."""
    return inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0]


def default_of(model: type[BaseModel], name: str) -> str:
    """Return the default of a field as a user writes it; ``required`` without one."""
    field = model.model_fields[name]
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "default" in extra:
        return f"`{extra['default']}`"
    if field.default is PydanticUndefined:
        return "" if field.default_factory is not None else "required"
    return _shown(field.default)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value in (None, "", (), []) or isinstance(value, SecretStr | BaseModel) else f"`{value}`"


def allowed(schema: Mapping[str, Any]) -> str:
    """Return what a field takes, from its JSON Schema: values, type and limits."""
    if "anyOf" in schema:
        texts = [allowed(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(text for text in texts if text))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {allowed(schema.get('items', {})) or 'values'}"
    kind = schema.get("format") or schema.get("type", "")
    limits = [
        f"{words} {schema[key]:,}"
        for key, words in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "more than"),
            ("maximum", "at most"),
            ("maxLength", "at most characters:"),
        )
        if key in schema
    ]
    name = {
        "string": "text",
        "path": "text",
        "password": "text",
        "object": "map",
        "ipvanynetwork": "address or network",
    }.get(kind, kind)
    return ", ".join([name, *limits])


def model_of(annotation: object) -> type[BaseModel] | None:
    """Return the model that a field's annotation names, if it does."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
