"""The installed sources and sinks, found by their entry points.

The parameters of a connector's constructor are its options.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from clonos.documents import describe_problem
from clonos.errors import ClonosError, NotFound
from clonos.resources.service import Connector, FieldProblem, Validation

Kind = Literal["source", "sink"]

GROUPS: Final[Mapping[Kind, str]] = {"source": "clonos.sources", "sink": "clonos.sinks"}
_NO_SCHEMA = (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError)


@dataclass(frozen=True)
class Plugin:
    """One installed source or sink."""

    kind: Kind
    name: str
    version: str
    make: Callable[..., object]  # the connector's class, called with the options
    options: type[BaseModel]  # a pydantic model with one field for each option

    def describe(self) -> Connector:
        """Return the connector as the REST API shows it: name, version, summary and the JSON Schema of its options."""
        doc = inspect.getdoc(self.make) or ""
        texts = _argument_texts(doc)
        options = {name: _describe(field, texts.get(name, "")) for name, field in self._parameters().items()}
        summary = doc.partition("\n\n")[0].replace("\n", " ")
        return Connector(name=self.name, kind=self.kind, version=self.version, summary=summary, options=options)

    def validate(self, options: Mapping[str, Any]) -> Validation:
        """Return the problems of options: of their names and types, then of the connector's own checks.

        For the latter the connector is created with the options.
        """
        try:
            values = self.options.model_validate_json(json.dumps(options), strict=True)
        except ValidationError as error:
            return Validation(valid=False, problems=[_problem(details, self.options) for details in error.errors()])
        problem = self._refusal({name: getattr(values, name) for name in values.model_fields_set})
        return Validation(valid=problem is None, problems=[problem] if problem else [])

    def _refusal(self, options: Mapping[str, Any]) -> FieldProblem | None:
        try:
            self.make(**options)
        except ClonosError as error:
            return FieldProblem(field=_named(error.what, self.options), what=error.what, hint=error.hint)
        except (TypeError, ValueError) as error:
            return FieldProblem(field="", what=str(error))
        return None

    def _parameters(self) -> dict[str, inspect.Parameter]:
        hints = typing.get_type_hints(_initialiser(self.make))
        return {
            name: parameter.replace(annotation=hints.get(name, Any))
            for name, parameter in inspect.signature(self.make).parameters.items()
            if name in self.options.model_fields
        }


def installed(kind: Kind | None = None) -> list[Plugin]:
    """Return all installed sources and sinks, sorted by kind and name.

    The first call imports their modules, which blocks: call it in a thread.
    """
    kinds = [kind] if kind else list(GROUPS)
    return [
        _load(kind, point)
        for kind in kinds
        for point in sorted(entry_points(group=GROUPS[kind]), key=attrgetter("name"))
    ]


def find(kind: Kind, name: str) -> Plugin:
    """Return the installed connector with this kind and name; `NotFound` if there is none."""
    for point in entry_points(group=GROUPS[kind]):
        if point.name == name:
            return _load(kind, point)
    known = ", ".join(sorted(point.name for point in entry_points(group=GROUPS[kind]))) or "none"
    raise NotFound(f"No {kind} {name!r} is installed.", hint=f"installed: {known}.")


@cache
def _load(kind: Kind, point: EntryPoint) -> Plugin:
    make = point.load()
    version = point.dist.version if point.dist is not None else ""
    return Plugin(kind, point.name, version, make, _model(make))


def _model(make: Callable[..., object]) -> type[BaseModel]:
    hints = typing.get_type_hints(_initialiser(make))
    fields: dict[str, Any] = {}
    accepts_others = False
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            accepts_others = True
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[name] = (hints.get(name, Any), default)
    config = ConfigDict(extra="allow" if accepts_others else "forbid", arbitrary_types_allowed=True)
    return create_model("Options", __config__=config, **fields)


def _initialiser(make: Callable[..., object]) -> Callable[..., object]:
    return make.__init__ if inspect.isclass(make) else make


def _describe(parameter: inspect.Parameter, text: str) -> dict[str, Any]:
    try:
        described = TypeAdapter(parameter.annotation).json_schema()
    except _NO_SCHEMA:
        described = {"type": str(parameter.annotation)}
    described["required"] = parameter.default is inspect.Parameter.empty
    if parameter.default is not inspect.Parameter.empty:
        described["default"] = _plain(parameter.default)
    if text:
        described["description"] = text
    return described


def _plain(value: object) -> object:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


def _argument_texts(doc: str) -> dict[str, str]:
    """Return the text of each argument in a docstring's ``Args:``."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE)
    if section is None:
        return {}
    arguments = re.findall(r"^ {4}(\w+):((?:.*\n?)(?: {5,}.*\n?)*)", section[1], re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in arguments}


def _problem(error: Any, options: type[BaseModel]) -> FieldProblem:
    field = ".".join(map(str, error["loc"]))
    hint = ""
    if error["type"] == "extra_forbidden":
        hint = f"known options: {', '.join(options.model_fields)}."
    return FieldProblem(field=field, what=describe_problem(error, options), hint=hint)


def _named(text: str, options: type[BaseModel]) -> str:
    """Return the option in an error's text, if there is exactly one."""
    named = [name for name in options.model_fields if re.search(rf"\b{name}\b", text)]
    return named[0] if len(named) == 1 else ""
