"""Value types of configuration files, as types for model fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from testbed.errors import did_you_mean
from testbed.plugins import OWN_FILE, Registry, registry
from testbed.spec import units
from testbed.spec.base_model import ValueFormat
from testbed.spec.catalogue import accelerators


def _text(example: str, description: str) -> dict[str, Any]:
    return {"type": "string", "examples": [example], "description": description}


def integer(minimum: int, maximum: int | None = None) -> ValueFormat:
    """Return the format of an integer from `minimum` to `maximum`."""
    limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ValueError(f"a whole number {limits}")
        if maximum is not None and value > maximum:
            raise ValueError(f"a whole number {limits}")
        return value

    schema = {"type": "integer", "minimum": minimum} | ({} if maximum is None else {"maximum": maximum})
    return ValueFormat(parse, schema)


def number(least: float, most: float, example: float) -> ValueFormat:
    """Return the format of a number from `least` to `most`, inclusive."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise ValueError(f"a number from {least:g} to {most:g}, such as {example:g}")
        return float(value)

    return ValueFormat(parse, {"type": "number", "minimum": least, "maximum": most})


def _parse_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def choice(kind: str, known: Sequence[str]) -> ValueFormat:
    """Return the format of one of a few words; `kind` names them in errors."""

    def parse(value: object) -> str:
        if value not in known:
            raise ValueError(f"{kind}: {did_you_mean(value, known)}")
        return str(value)

    return ValueFormat(parse, {"enum": list(known)})


ACCELERATORS = tuple(accelerators())
ACCELERATOR = choice("an accelerator", ACCELERATORS)
COMPUTE_DTYPES = ("bf16", "fp8")


def registered_name(kind: str) -> ValueFormat:
    """Return the format of a name in a registry, or FILE.py:NAME; `kind`: one of testbed.plugins.REGISTRIES."""

    def parse(value: object) -> str:
        if (expected := registry(kind).expected(value)) is not None:
            raise ValueError(expected)
        return str(value)

    own = {"type": "string", "pattern": OWN_FILE.pattern}
    return ValueFormat(parse, lambda: {"anyOf": [{"enum": list(registry(kind))}, own]})


def _parse_options(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError("a mapping (keys and values)")
    return dict(value)


OPTIONS = ValueFormat(_parse_options, {"type": "object"})


def pattern(expression: str, expected: str) -> ValueFormat:
    """Return the format of a string that matches a regular expression."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(expression, value):
            raise ValueError(expected)
        return value

    return ValueFormat(parse, {"type": "string", "pattern": f"^{expression}$"})


def or_keyword(word: str, form: ValueFormat) -> ValueFormat:
    """Return a format that also takes a word, such as auto."""

    def parse(value: object) -> Any:
        if value == word:
            return value
        try:
            return form.parse(value)
        except ValueError as error:
            raise ValueError(f"{word}, or {error}") from None

    def write(value: Any) -> Any:
        return value if value == word else form.write(value)

    return ValueFormat(parse, lambda: {"anyOf": [{"const": word}, form.json_schema]}, write)


def word_or_list(
    words: Sequence[str],
    items: Mapping[str, Any],
    fits: Callable[[Sequence[Any]], bool],
    example: str,
    **limits: Any,
) -> ValueFormat:
    """Return the format of one of a few words or of a list.

    Args:
        words: the words.
        items: JSON schema of the list's items.
        fits: whether a list is valid.
        example: a description of the list, for errors.
        limits: further keys of the list's JSON schema.
    """

    def parse(value: object) -> str | tuple[Any, ...]:
        if value in words:
            return str(value)
        if isinstance(value, (list, tuple)) and fits(value):
            return tuple(value)
        raise ValueError(f"{', '.join(words)}, or {example}")

    word = {"enum": list(words)} if len(words) > 1 else {"const": words[0]}
    schema = {"anyOf": [word, {"type": "array", "items": items, **limits}]}
    return ValueFormat(parse, schema, lambda value: value if isinstance(value, str) else list(value))


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < float("inf"):
        raise ValueError("a number of at least 1")
    return float(value)


def _positive(parse: Callable[[object], float], expected: str) -> Callable[[object], Any]:
    def parse_positive(value: object) -> Any:
        if not (number := parse(value)):
            raise ValueError(expected)
        return number

    return parse_positive


MAX_DSCP = 63


def _dscps(value: object) -> tuple[int, ...]:
    numbers = value if isinstance(value, (list, tuple)) else [value]
    if not numbers or not all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= MAX_DSCP for item in numbers
    ):
        raise ValueError(f"a DSCP from 0 to {MAX_DSCP}, or a list of them")
    return tuple(numbers)


_DSCP = integer(0, MAX_DSCP).json_schema
_DSCPS = ValueFormat(
    _dscps,
    {"anyOf": [_DSCP, {"type": "array", "items": _DSCP, "minItems": 1}]},
    lambda value: value[0] if len(value) == 1 else list(value),
)
RATE = ValueFormat(units.parse_rate, _text("400 Gbit/s", units.RATE_EXPECTED), units.format_rate)
_DURATION = ValueFormat(units.parse_duration, _text("2.5 ms", units.DURATION_EXPECTED), units.format_duration)
_DELAY = ValueFormat(units.parse_delay, _text("500 km", units.DELAY_EXPECTED), units.format_duration)
_DISTRIBUTION = choice("a distribution", ("uniform", "normal", "pareto"))
SIZE = ValueFormat(
    _positive(units.parse_size, "a size above 0"), _text("64 MiB", units.SIZE_EXPECTED), units.format_size
)
_FRACTION = ValueFormat(
    units.parse_fraction,
    {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, _text("0.1 %", units.FRACTION_EXPECTED)]},
    units.format_fraction,
)
_SHARE = ValueFormat(
    _positive(units.parse_fraction, "a share above 0, such as 40 % or 0.4"),
    _FRACTION.json_schema,
    units.format_fraction,
)
_FLOP_RATE = ValueFormat(
    units.parse_flop_rate, _text("989 Tflop/s", units.FLOP_RATE_EXPECTED), units.format_flop_rate
)
_FLAG = ValueFormat(_parse_flag, {"type": "boolean"})
_TIMEOUT = ValueFormat(
    _positive(units.parse_duration, "a duration above 0"), _DURATION.json_schema, units.format_duration
)
_RATIO = ValueFormat(
    units.parse_ratio,
    {"type": "string", "pattern": r"^1:[0-9.]+$", "examples": ["1:2.8"], "description": units.RATIO_EXPECTED},
    lambda value: f"1:{value:g}",
)
_FACTOR = ValueFormat(
    _factor, {"type": "number", "minimum": 1}, lambda value: int(value) if value.is_integer() else value
)

# The `...OrNone` types are for keys that may be left out; a key that is there must have a value.
Rate = Annotated[float, RATE]
RateOrNone = Annotated[float | None, RATE]
Duration = Annotated[float, _DURATION]
DurationOrNone = Annotated[float | None, _DURATION]
DelayOrNone = Annotated[float | None, _DELAY]
DelayOrZero = Annotated[float, _DELAY]
DistributionOrNone = Annotated[str | None, _DISTRIBUTION]
Timeout = Annotated[float, _TIMEOUT]
TimeoutOrNone = Annotated[float | None, _TIMEOUT]
Flag = Annotated[bool, _FLAG]
FlagOrNone = Annotated[bool | None, _FLAG]
Size = Annotated[int, SIZE]
SizeOrNone = Annotated[int | None, SIZE]
Fraction = Annotated[float, _FRACTION]
FractionOrNone = Annotated[float | None, _FRACTION]
Share = Annotated[float, _SHARE]
ShareOrNone = Annotated[float | None, _SHARE]
FlopRateOrNone = Annotated[float | None, _FLOP_RATE]
Queue = Annotated[int | Literal["auto"], or_keyword("auto", SIZE)]
QueueOrNone = Annotated[int | Literal["auto"] | None, or_keyword("auto", SIZE)]
Ratio = Annotated[float, _RATIO]
Factor = Annotated[float | Literal["auto"], or_keyword("auto", _FACTOR)]
Name = Annotated[
    str, pattern(r"[a-z0-9][a-z0-9._-]{0,63}", "a name: lower-case letters, digits, '.', '_', '-'")
]
BuildingName = Annotated[
    str, pattern(r"[a-z][a-z0-9]{0,11}", "a lower-case letter, then up to 11 lower-case letters or digits")
]
Count = Annotated[int, integer(1)]
CountOrNone = Annotated[int | None, integer(1)]
CountOrZero = Annotated[int, integer(0)]
Dscp = Annotated[int, integer(0, MAX_DSCP)]
Dscps = Annotated[tuple[int, ...], _DSCPS]
DscpsOrNone = Annotated[tuple[int, ...] | None, _DSCPS]


AUTO = "auto"

COLLECTIVE = registered_name("collectives")


def algorithms_of(collective: str) -> Registry[Any]:
    """Return the registry of a collective's algorithms. Raises PluginError if a file's collective does not load."""
    found: Registry[Any] = registry("collectives").find(collective).algorithms
    return found


def algorithm_names(collectives: Sequence[str]) -> tuple[str, ...]:
    """Return the algorithm names that these collectives take, without FILE.py:NAME."""
    return (*dict.fromkeys(name for one in collectives for name in algorithms_of(one)), AUTO)


def expected_algorithm(value: object, collectives: Sequence[str]) -> str | None:
    """Return what is expected in place of an algorithm's name, or None if any of the collectives takes it."""
    known = algorithm_names(collectives)
    if value in known:
        return None
    if isinstance(value, str) and OWN_FILE.fullmatch(value):
        return algorithms_of(collectives[0]).expected(value)
    return f"FILE.py:NAME or an algorithm: {did_you_mean(value, known)}"


def algorithm(*collectives: str) -> ValueFormat:
    """Return the format of an algorithm's name for any of these collectives, auto, or FILE.py:NAME."""

    def parse(value: object) -> str:
        if (expected := expected_algorithm(value, collectives)) is not None:
            raise ValueError(expected)
        return str(value)

    return ValueFormat(parse, lambda: algorithm_schema(collectives))


def algorithm_schema(collectives: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of an algorithm's name."""
    own = {"type": "string", "pattern": OWN_FILE.pattern}
    return {"anyOf": [{"enum": list(algorithm_names(collectives))}, own]}
