"""The sources and sinks that are installed, found by their entry points; their options come from their signatures."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from clonos.errors import ClonosError, NotFound
from clonos.resources.service import Connector, FieldProblem, Validation

Kind = Literal["source", "sink"]

GROUPS: Final[Mapping[Kind, str]] = {"source": "clonos.sources", "sink": "clonos.sinks"}
_NO_SCHEMA = (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError)


@dataclass(frozen=True)
class Plugin:
    """One installed connector.

    Attributes:
        make: Its class.
        options: A model with one field for each option.
    """

    kind: Kind
    name: str
    version: str
    make: Callable[..., object]
    options: type[BaseModel]

    def describe(self) -> Connector:
        """What users are shown."""
        doc = inspect.getdoc(self.make) or ""
        texts = _argument_texts(doc)
        options = {name: _describe(field, texts.get(name, "")) for name, field in self._parameters().items()}
        summary = doc.partition("\n\n")[0].replace("\n", " ")
        return Connector(name=self.name, kind=self.kind, version=self.version, summary=summary, options=options)

    def validate(self, options: Mapping[str, Any]) -> Validation:
        """Look at names and types, and then at what the connector itself says when it is made with them."""
        try:
            given = self.options.model_validate_json(json.dumps(options), strict=True)
        except ValidationError as error:
            return Validation(valid=False, problems=[_problem(one, self.options) for one in error.errors()])
        problem = self._refusal({name: getattr(given, name) for name in given.model_fields_set})
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
    """All connectors, by kind and name. The first call imports their modules: call it in a thread."""
    kinds = [kind] if kind else list(GROUPS)
    return [_load(one, point) for one in kinds for point in sorted(entry_points(group=GROUPS[one]), key=_by_name)]


def find(kind: Kind, name: str) -> Plugin:
    """One connector.

    Raises:
        NotFound: Nothing of that name is installed.
    """
    for point in entry_points(group=GROUPS[kind]):
        if point.name == name:
            return _load(kind, point)
    known = ", ".join(sorted(point.name for point in entry_points(group=GROUPS[kind]))) or "none"
    raise NotFound(f"No {kind} {name!r} is installed.", hint=f"installed are: {known}.")


@cache
def _load(kind: Kind, point: EntryPoint) -> Plugin:
    make = point.load()
    version = point.dist.version if point.dist is not None else ""
    return Plugin(kind, point.name, version, make, _model(make))


def _model(make: Callable[..., object]) -> type[BaseModel]:
    hints = typing.get_type_hints(_initialiser(make))
    fields: dict[str, Any] = {}
    more = False
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            more = True
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[name] = (hints.get(name, Any), default)
    config = ConfigDict(extra="allow" if more else "forbid", arbitrary_types_allowed=True)
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
    """What a docstring's ``Args:`` says of each argument."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE)
    if section is None:
        return {}
    found = re.findall(r"^ {4}(\w+):((?:.*\n?)(?: {5,}.*\n?)*)", section[1], re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _problem(error: Any, options: type[BaseModel]) -> FieldProblem:
    field = ".".join(map(str, error["loc"]))
    hint = ""
    if error["type"] == "extra_forbidden":
        hint = f"known options: {', '.join(options.model_fields)}."
    return FieldProblem(field=field, what=error["msg"], hint=hint)


def _named(text: str, options: type[BaseModel]) -> str:
    """The option that an error's text names, where there is exactly one."""
    named = [name for name in options.model_fields if re.search(rf"\b{name}\b", text)]
    return named[0] if len(named) == 1 else ""


def _by_name(point: EntryPoint) -> str:
    return point.name
