"""Base of all configuration models: strict, frozen, every problem found at once and worded for people.

Problems travel as pydantic errors of one own type, so that their location is kept while they pass through the models
around them, and the same checks hold for files and for models made in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
)
from pydantic import ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

from testbed.config.errors import ConfigError
from testbed.config.loading import Document, Location, did_you_mean, show

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
    """How one kind of value is written: `parse` raises ValueError saying what is expected; `write` undoes it."""

    parse: Callable[[object], Any]
    schema: JsonSchemaValue
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
        """As given."""
        return self.schema

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


class Strict(BaseModel):
    """A mapping with known keys only. Subclasses may add `cross_checks`, which look at several values together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def keys(cls) -> list[str]:
        """Keys as written in files."""
        return [info.alias or name for name, info in cls.model_fields.items()]

    @classmethod
    def cross_checks(cls, data: Mapping[str, Any]) -> Iterator[Finding]:
        """Problems between values. `data` is not validated yet: pass over in silence what has a wrong form."""
        yield from ()

    @classmethod
    def completed(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """`data` with defaults that depend on other values."""
        return data

    @model_validator(mode="wrap")
    @classmethod
    def _find_everything(cls, data: Any, handler: ModelWrapValidatorHandler[_Model]) -> _Model:
        found: list[InitErrorDetails] = []
        if isinstance(data, Mapping):
            data = cls.completed(data)
            found = [_details(_error(f.value, f.expected), f.location, None) for f in cls.cross_checks(data)]
        model = None
        try:
            model = handler(data)
        except ValidationError as error:
            found = [cls._worded(details) for details in error.errors(include_url=False)] + found
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
            worded = _error("an unknown key", f"one of: {did_you_mean(location[-1], cls.keys())}")
        elif kind == "missing":
            worded = _error("nothing", "this key, which has no default")
        else:
            worded = _error(show(value), _SHAPES.get(kind, error["msg"]))
        return _details(worded, location, value)

    def to_data(self) -> dict[str, Any]:
        """The file form as plain data: every default explicit, quantities with units."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_yaml(self) -> str:
        """The file form; loading it gives the same model again."""
        return yaml.safe_dump(self.to_data(), sort_keys=False, allow_unicode=True)


_Model = TypeVar("_Model", bound=Strict)


def _details(error: PydanticCustomError, location: Location, value: object) -> InitErrorDetails:
    return InitErrorDetails(type=error, loc=location, input=value)


def validate(model: type[_Model], document: Document) -> _Model:
    """The model that a document describes. ConfigError with every problem, in the order of the files' lines."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems = [
            document.problem(details["loc"], details["ctx"]["value"], details["ctx"]["expected"])
            for details in error.errors(include_url=False)
        ]
        raise ConfigError(sorted(problems, key=lambda problem: (problem.file, problem.line or 0))) from None
