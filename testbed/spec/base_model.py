"""Base of all configuration models: strict, frozen, every problem found at once and worded for people.

Problems travel as pydantic errors of one own type, so that their location is kept while they pass through the models
around them, and the same checks hold for files and for models made in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
    """Something wrong at a location inside a model; `value` is shown as it stands."""

    location: Location
    value: str
    expected: str


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: schemas are dictionaries
class Form:
    """How one kind of value is written: `parse` raises ValueError saying what is expected; `write` undoes it.

    schema: may be a function, called when it is needed: names from registries are not known while modules load.
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
        """As given, and a copy: pydantic adds to it."""
        return dict(self.json_schema)

    @property
    def json_schema(self) -> JsonSchemaValue:
        """As given, or made now."""
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
    """A mapping with known keys only. Subclasses look at several values together in `raw_checks` and `checks`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    computed: ClassVar[frozenset[str]] = frozenset()  # fields that `completed` gives a default
    renamed: ClassVar[Mapping[str, str]] = {}  # keys that files had once: what to write in their place

    @classmethod
    def file_keys(cls) -> list[str]:
        """Keys as written in files."""
        return [info.alias or name for name, info in cls.model_fields.items()]

    @classmethod
    def completed(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """`data`, not validated yet, with defaults that depend on other values."""
        return data

    @classmethod
    def raw_checks(cls, data: Mapping[str, Any]) -> Iterator[Finding]:
        """Problems between values of `data`, not validated yet: what has a wrong form is passed over in silence.

        For checks across a whole file, so that they are not put off until every other mistake is mended.
        """
        yield from ()

    def checks(self) -> Iterator[Finding]:
        """Problems between values that are sound one by one."""
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _find_everything(cls, data: Any, handler: ModelWrapValidatorHandler[_Model]) -> _Model:
        if isinstance(data, cls):
            return handler(data)
        found: list[InitErrorDetails] = []
        findings: list[Finding] = []
        if isinstance(data, Mapping):
            data = cls.completed(data)
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
        """A pydantic error in our own words."""
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
            return _error("a key that has another name now", cls.renamed[str(key)])
        return _error("an unknown key", f"one of: {did_you_mean(key, cls.file_keys())}")

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Defaults as they are written in files; no generated titles."""
        found = handler(schema)
        described = handler.resolve_ref_schema(found)
        for name, info in cls.model_fields.items():
            described["properties"][info.alias or name].pop("title", None)
            described["properties"][info.alias or name].pop("default", None)
            if (default := cls.written_default(name)) is not None:
                described["properties"][info.alias or name]["default"] = default
        return found

    @classmethod
    def written_default(cls, name: str) -> Any:
        """The default of a field in its file form; None for none, or for one that depends on other values."""
        info = cls.model_fields[name]
        if info.is_required() or info.default is None or name in cls.computed:
            return None
        form = next((item for item in info.metadata if isinstance(item, Form)), None)
        if form is not None:
            return form.write(info.default)
        return info.default.to_data() if isinstance(info.default, StrictModel) else info.default

    def to_data(self) -> dict[str, Any]:
        """The file form as plain data: every default explicit, quantities with units."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_yaml(self) -> str:
        """The file form; loading it gives the same model again."""
        return str(yaml.safe_dump(self.to_data(), sort_keys=False, allow_unicode=True))


_Model = TypeVar("_Model", bound=StrictModel)


def _details(error: PydanticCustomError, location: Location, value: object) -> InitErrorDetails:
    return InitErrorDetails(type=error, loc=location, input=value)


def inlined_schema(model: type[StrictModel]) -> JsonSchemaValue:
    """A model's JSON schema that needs no definitions elsewhere, for a field that may also be written otherwise."""
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
    """What lies at `path` in mappings not validated yet, or in models by the keys of files; None if nothing does."""
    for key in path:
        if isinstance(value, StrictModel):
            name = _fields(type(value)).get(key)
            value = None if name is None else getattr(value, name)
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


@lru_cache(None)
def _fields(model: type[StrictModel]) -> Mapping[str, str]:
    """By their keys in files."""
    return dict(zip(model.file_keys(), model.model_fields, strict=True))


def _written(location: Location) -> Location:
    """A pydantic location without the mark that it is the key which is wrong."""
    return location[:-1] if location[-1:] == ("[key]",) else location


def validate(model: type[_Model], document: Document) -> _Model:
    """The model that a document describes. ConfigError with every problem, in the order of the files' lines."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems = [
            document.problem(_written(details["loc"]), details["ctx"]["value"], details["ctx"]["expected"])
            for details in error.errors(include_url=False)
        ]
        raise ConfigError(sorted(problems, key=lambda problem: (problem.file, problem.line or 0))) from None
