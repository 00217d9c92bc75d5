"""Base of all configuration models: strict, frozen, and reporting every problem at once in readable words.

Problems are raised as pydantic errors of one custom type. They keep their location through nested models, and the
same checks apply to files and to models made in Python.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from textwrap import dedent
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

from testbed.errors import did_you_mean
from testbed.spec.errors import ConfigError
from testbed.spec.units import without_unit
from testbed.spec.yaml_loader import Document, Location, show

_TYPE = "testbed"
_SHAPES = {
    "model_type": "a mapping (keys and values)",
    "dict_type": "a mapping (keys and values)",
    "mapping_type": "a mapping (keys and values)",
    "tuple_type": "a list",
}


@dataclass(frozen=True)
class Finding:
    """A problem at a location inside a model. `value` is shown verbatim."""

    location: Location
    value: str
    expected: str


def located(findings: Iterable[Finding], *parents: Any) -> Iterator[Finding]:
    """Yield the findings of a nested model, which is at the location `parents` of the model that contains it."""
    for finding in findings:
        yield replace(finding, location=(*parents, *finding.location))


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: schemas are dictionaries
class ValueFormat:
    """The text form of a kind of value: `parse` raises ValueError with the expected form; `write` is its inverse.

    `schema` may be a function, called on use: names in registries are not known while modules load.
    """

    parse: Callable[[object], Any]
    schema: JsonSchemaValue | Callable[[], JsonSchemaValue]
    write: Callable[[Any], Any] = lambda value: value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate with `parse`; in JSON mode, serialize with `write`."""
        return core_schema.no_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                self.write, when_used="json-unless-none"
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return a copy, since pydantic adds to it."""
        return dict(self.json_schema)

    @property
    def json_schema(self) -> JsonSchemaValue:
        """The JSON schema, computed if it is a function."""
        return self.schema() if callable(self.schema) else self.schema

    def _validate(self, value: object) -> Any:
        try:
            return self.parse(value)
        except ValidationError:
            raise
        except ValueError as error:
            raise _error(show(value), str(error)) from None


def _error(value: str, expected: str) -> PydanticCustomError:
    return PydanticCustomError(
        _TYPE, "got {value}, expected {expected}", {"value": value, "expected": expected}
    )


class StrictModel(BaseModel):
    """A mapping with known keys only. Subclasses check several values together in `raw_checks` and `checks`.

    A field's docstring is its description in the reference. Its name without the unit is its key in files.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=without_unit)
    documented_in: ClassVar[tuple[type, ...]] = ()  # other classes with docstrings of its fields
    derived_fields: ClassVar[frozenset[str]] = frozenset()  # fields that `with_defaults` gives a default
    renamed: ClassVar[Mapping[str, str]] = {}  # former keys: what to write instead

    @classmethod
    def file_keys(cls) -> list[str]:
        """Return the keys as written in files."""
        return [info.alias or name for name, info in cls.model_fields.items()]

    @classmethod
    def with_defaults(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return unvalidated data with defaults that depend on other values."""
        return data

    @classmethod
    def raw_checks(cls, data: Mapping[str, Any]) -> Iterator[Finding]:
        """Yield problems between values of unvalidated data, ignoring values of the wrong form.

        For checks across a whole file, so that they are reported together with all other mistakes.
        """
        yield from ()

    def checks(self) -> Iterator[Finding]:
        """Yield problems between values that are valid individually."""
        yield from ()

    def reject(self, names: Iterable[str], reason: str, expected: str) -> Iterator[Finding]:
        """Yield a problem for each of these fields that is set. `reason`: what follows its key, as in "with a plan"."""
        for name in names:
            if getattr(self, name) is not None:
                key = type(self).model_fields[name].alias or name
                yield Finding((key,), f"{key} {reason}", expected)

    @model_validator(mode="wrap")
    @classmethod
    def _find_everything(cls, data: Any, handler: ModelWrapValidatorHandler[_Model]) -> _Model:
        if isinstance(data, cls):
            return handler(data)
        found: list[InitErrorDetails] = []
        findings: list[Finding] = []
        if isinstance(data, Mapping):
            data = cls.with_defaults(data)
            findings.extend(cls.raw_checks(data))
        model = None
        try:
            model = handler(data)
            findings.extend(model.checks())
        except ValidationError as error:
            found.extend(cls._worded(details) for details in error.errors(include_url=False))
        found.extend(_details(_error(f.value, f.expected), f.location, None) for f in findings)
        if model is None or found:
            raise ValidationError.from_exception_data(cls.__name__, found)
        return model

    @classmethod
    def _worded(cls, error: ErrorDetails) -> InitErrorDetails:
        """Reword a pydantic error."""
        location, kind, value = error["loc"], error["type"], error["input"]
        if kind == _TYPE:
            worded = _error(error["ctx"]["value"], error["ctx"]["expected"])
        elif kind == "extra_forbidden":
            worded = cls._unknown(location[-1])
        elif kind == "missing":
            worded = _error("nothing", "this key, which has no default")
        else:
            worded = _error(show(value), _SHAPES.get(kind, error["msg"]))
        return _details(worded, location, value)

    @classmethod
    def _unknown(cls, key: object) -> PydanticCustomError:
        if key in cls.renamed:
            return _error("a key that was renamed", cls.renamed[str(key)])
        return _error("an unknown key", f"one of: {did_you_mean(key, cls.file_keys())}")

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Write defaults in their file form, add descriptions, and drop generated titles."""
        found = handler(schema)
        properties = handler.resolve_ref_schema(found)["properties"]
        descriptions = field_descriptions(cls)
        for name, info in cls.model_fields.items():
            described = properties[info.alias or name]
            described.pop("title", None)
            described.pop("default", None)
            if name in descriptions:
                described["description"] = descriptions[name]
            if (default := cls.file_default(name)) is not None:
                described["default"] = default
        return found

    @classmethod
    def file_default(cls, name: str) -> Any:
        """Return a field's default in its file form; None if it has none or depends on other values."""
        info = cls.model_fields[name]
        if info.is_required() or info.default is None or name in cls.derived_fields:
            return None
        form = next((item for item in info.metadata if isinstance(item, ValueFormat)), None)
        if form is not None:
            return form.write(info.default)
        return info.default.to_data() if isinstance(info.default, StrictModel) else info.default

    def to_data(self) -> dict[str, Any]:
        """Return the file form as plain data: every default explicit, quantities with units."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_yaml(self) -> str:
        """Return the file form as YAML; loading it gives an equal model."""
        return str(yaml.safe_dump(self.to_data(), sort_keys=False, allow_unicode=True))


_Model = TypeVar("_Model", bound=StrictModel)


def _details(error: PydanticCustomError, location: Location, value: object) -> InitErrorDetails:
    return InitErrorDetails(type=error, loc=location, input=value)


@lru_cache(None)
def field_descriptions(model: type[StrictModel]) -> Mapping[str, str]:
    """Return the description of each field by name: its docstring, on one line.

    Docstrings are read on use: pydantic's `use_attribute_docstrings` reads all of them when modules load, which takes
    0.1 s.
    """
    found: dict[str, str] = {}
    models = [one for one in reversed(model.__mro__) if issubclass(one, StrictModel)]
    for owner in (*model.documented_in, *models):
        source = ast.parse(dedent(inspect.getsource(owner))).body[0]
        for field, documentation in pairwise(source.body if isinstance(source, ast.ClassDef) else ()):
            match field, documentation:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found


def inlined_schema(model: type[StrictModel]) -> JsonSchemaValue:
    """Return a model's JSON schema without references, for a field with alternative forms."""
    schema = model.model_json_schema()
    known = schema.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            rest = {key: value for key, value in part.items() if key != "$ref"}
            return inlined({**known[part["$ref"].rpartition("/")[2]], **rest})
        return {key: inlined(value) for key, value in part.items()}

    return {**inlined(schema), "title": model.__name__}


def look_up(value: Any, *path: str) -> Any:
    """Return the value at a path of keys, in unvalidated mappings or in models; None if there is none."""
    for key in path:
        if isinstance(value, StrictModel):
            name = _fields(type(value)).get(key)
            value = None if name is None else getattr(value, name)
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


@lru_cache(None)
def _fields(model: type[StrictModel]) -> Mapping[str, str]:
    """Return field names by file key."""
    return dict(zip(model.file_keys(), model.model_fields, strict=True))


def _written(location: Location) -> Location:
    """Remove pydantic's mark for an invalid key from a location."""
    return location[:-1] if location[-1:] == ("[key]",) else location


def validate(model: type[_Model], document: Document) -> _Model:
    """Return the model that a document describes. Raises ConfigError with every problem, in line order."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems = [
            document.problem(_written(details["loc"]), details["ctx"]["value"], details["ctx"]["expected"])
            for details in error.errors(include_url=False)
        ]
        raise ConfigError(sorted(problems, key=lambda problem: (problem.file, problem.line or 0))) from None
