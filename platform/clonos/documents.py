"""Reads YAML documents into pydantic models, explains all problems of a document at once, and describes its fields."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from clonos.errors import SpecError

T = TypeVar("T", bound=BaseModel)

_Place = tuple[str | int, ...]
# What users write for a field that has another place or a quite different name.
_OFTEN: Final[Mapping[str, str]] = {
    "standbys": "standby.replicas",
    "replicas": "standby.replicas",
    "conf": "sparkConf",
    "parallelism": "shufflePartitions",
    "partitions": "shufflePartitions",
    "checkpointLocation": "checkpoint",
}
_CLOSE: Final = 0.6


def read_yaml(path: Path, model: type[T], described: str) -> T:
    """Read a YAML file into a pydantic model; `described` names the file in errors: ``a job specification``.

    Raises:
        SpecError: The file is missing or invalid; the message names the line and the field of each problem.
    """
    try:
        text = path.read_text()
        return model.model_validate(load_yaml(text))
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error
    except yaml.MarkedYAMLError as error:
        raise SpecError(f"{path}{_position(error)} is not YAML: {error.problem or error}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not YAML: {error}.") from error
    except ValidationError as error:
        problems = explain(error, model, _lines(text))
        raise SpecError(f"{path} is not {described}: {problems}.") from error


def load_yaml(text: str | bytes) -> Any:
    """Parse a YAML document, as `yaml.safe_load` does; a key that a mapping has twice is a `yaml.YAMLError`."""
    return yaml.load(text, _Loader)  # noqa: S506, a safe loader


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # refused by the superclass, or a tuple
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {str(key)!r} is repeated", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a document as users write it, for editors that complete and check it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema(by_alias=True)}


def describe_fields(schema: dict[str, Any], model: type[BaseModel], known: Mapping[str, str] | None = None) -> None:
    """Add the meaning of each field to a JSON Schema, from the class `model` or from `known`."""
    schema.setdefault("description", "")
    texts = {**(known or {}), **meanings(model)}
    for name, field in model.model_fields.items():
        described = schema.get("properties", {}).get(field.alias or name)
        if described is not None and name in texts:
            described["description"] = texts[name]


def meanings(model: type) -> Mapping[str, str]:
    """Return the meaning of each field, also of inherited ones: the text below the field in its class."""
    texts: dict[str, str] = {}
    for cls in (base for base in reversed(model.__mro__) if not base.__module__.startswith("pydantic")):
        texts |= _texts_of(cls.__module__).get(cls.__qualname__, {})
    return texts


@functools.cache
def _texts_of(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return class → field → the text below the field in the source of a module."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # without a source: builtin, or made at run time
        return {}
    return {
        cls.name: {
            field.target.id: " ".join(text.split())
            for field, below in itertools.pairwise(cls.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(below, ast.Expr) and isinstance(text := getattr(below.value, "value", None), str)
        }
        for cls in tree.body
        if isinstance(cls, ast.ClassDef)
    }


def explain(
    error: ValidationError, model: type[BaseModel] | None = None, lines: Mapping[_Place, int] | None = None
) -> str:
    """Explain all problems of an invalid document in one line; `lines` has the line of each field's path.

    Returns:
        For example ``line 6, spec.standbys: unknown field; did you mean standby.replicas?``, separated by semicolons.
    """
    items = error.errors(include_url=False, include_context=False)
    places = [_line(item["loc"], lines or {}) + (".".join(map(str, item["loc"])) or "the file") for item in items]
    return "; ".join(f"{place}: {describe_problem(item, model)}" for place, item in zip(places, items, strict=True))


def describe_problem(item: Mapping[str, Any], model: type[BaseModel] | None = None) -> str:
    """Return what is wrong with one field: an item of `ValidationError.errors`. `model` is for suggestions."""
    kind, message, place = item["type"], str(item["msg"]), item["loc"]
    if kind == "extra_forbidden":
        suggestion = _suggestion(str(place[-1]), model, place[:-1]) if place else ""
        return f"unknown field{f'; did you mean {suggestion}?' if suggestion else ''}"
    if kind == "missing":
        return "is required"
    return message.removeprefix("Value error, ").replace("Input should be", "must be", 1)


def did_you_mean(name: str, names: Iterable[str], otherwise: str = ".") -> str:
    """Return the end of a sentence about an unknown name: ``. Did you mean topic?``, else `otherwise`."""
    close = difflib.get_close_matches(name, list(names), 1, _CLOSE)
    return f". Did you mean {close[0]}?" if close else otherwise


def _suggestion(name: str, model: type[BaseModel] | None, place: _Place) -> str:
    names = list(_fields(model, place)) if model is not None else []
    close = difflib.get_close_matches(name, names, 1, _CLOSE)
    often = _OFTEN.get(name, "")
    return often if often.partition(".")[0] in names else next(iter(close), "")


def _fields(model: type[BaseModel], place: _Place) -> Iterator[str]:
    """Yield the names of the fields at a place of a document."""
    for part in place:
        field = next((field for name, field in model.model_fields.items() if part in (name, field.alias)), None)
        inner = model_in(field.annotation) if field is not None else None
        if inner is None:
            return
        model = inner
    for name, field in model.model_fields.items():
        yield field.alias or name


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a type, such as that in ``Model | None``; None: there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(model_in, typing.get_args(annotation))), None)


def _position(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    return f", line {mark.line + 1}, column {mark.column + 1}," if mark is not None else ""


def _line(place: _Place, lines: Mapping[_Place, int]) -> str:
    """Return the line of a field, or of the innermost field around it that the document has."""
    for length in range(len(place), 0, -1):
        if place[:length] in lines:
            return f"line {lines[place[:length]]}, "
    return ""


def _lines(text: str) -> dict[_Place, int]:
    """Path of each field → its line."""
    lines: dict[_Place, int] = {}

    def walk(node: yaml.Node | None, place: _Place) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = (*place, str(key.value))
                lines[inner] = key.start_mark.line + 1
                walk(value, inner)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                lines[*place, index] = value.start_mark.line + 1
                walk(value, (*place, index))

    walk(yaml.compose(text, yaml.SafeLoader), ())
    return lines
