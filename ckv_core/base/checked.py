"""Reads records from plain values that may be hostile: decoded JSON, YAML, a client's arguments.

A record is a dataclass whose members declare what they may hold: `Annotated[int, within(0, 9)]` is
an `int` to all other code. pydantic checks by it, imported with the first value that is read, so
that the engine runs without it. What is wrong becomes one sentence with its path, here alone.
"""

import math
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar, cast

from ckv_core.errors import ConfigError

T = TypeVar("T")
Plain = dict[str, Any]  # a hostile object; or values by name that checks leave for one another
MOST = 1e300  # of a number, either sign
_ABSENT = object()
# By pydantic's types of errors; what it got follows.
_EXPECTED = {
    "bool_type": "true or false",
    "dataclass_type": "an object",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than_equal": "a number of at least {ge:,}",
    "int_type": "a whole number",
    "less_than_equal": "a number of at most {le:,}",
    "list_type": "an array",
    "literal_error": "one of {expected}",
    "mapping_type": "an object",
    "missing": "a value",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_long": "text of at most {max_length:,} characters",
    "string_type": "text",
    "string_unicode": "valid Unicode",
    "too_long": "at most {max_length:,} values are expected",
    "too_short": "an array of at least {min_length}",
    "tuple_type": "an array",
}


class WrongValueError(ValueError):
    """A check of our own found this, at a place below the checked value."""


def require(condition: object, expected: str, *at: int | str, got: object = _ABSENT) -> None:
    """Refuse the value that is read unless the condition holds.

    Raises:
        WrongValueError: `read` turns it into a ConfigError with the whole path.
    """
    if not condition:
        raise WrongValueError(expected, at, got)


class _Known(Plain):
    """Values that checks look up; of a part that was refused nothing is known."""

    def __missing__(self, name: str) -> Any:
        raise WrongValueError(f"a right {name} is expected before it", (), _ABSENT)


def read(
    kind: type[T], value: object, whole: str, *, at: Sequence[int | str] = (), **known: object
) -> T:
    """The value as a record of this kind; members that it does not know are passed over.

    The kind may be `Annotated[...]` or a union; the value is of Python's plain types, at a path of
    a whole, such as the `result JSON`. What is `known` the checks of records look up by name.

    Raises:
        ConfigError: the first thing that is wrong, with its path.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - the engine runs without it

    try:
        return cast("T", _adapter(cast("Any", kind)).validate_python(value, context=_Known(known)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place, expected, got = _found(first)
    raise wrong(whole, (*at, *place), expected, got)


def _found(first: Any) -> tuple[tuple[int | str, ...], str, object]:
    """Place, what is expected there, and what came, of an error of pydantic's."""
    context, got = first.get("ctx", {}), None if first["type"] == "missing" else first["input"]
    if isinstance(context.get("error"), WrongValueError):
        expected, below, own = context["error"].args
        return (*first["loc"], *below), expected, got if own is _ABSENT else own
    if first["type"] not in _EXPECTED:
        return first["loc"], first["msg"], got
    expected = _EXPECTED[first["type"]].format(**context).replace("'", "")
    return first["loc"], expected + " is expected" * (not expected.endswith("expected")), got


def wrong(whole: str, place: Sequence[int | str], expected: str, got: object) -> ConfigError:
    """Return the error for a value in a file."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    path = "".join(parts).removeprefix(".")[:120]
    try:
        shown = reprlib.repr(got)
    except ValueError:  # Python writes no number of over 4,300 digits
        shown = "a number that is too long"
    error = ConfigError(f"The {whole} is wrong at {path or 'its top'}: {expected}, got {shown}.")
    error.field = str(place[0]) if place else ""
    return error


def check_schema(value: object, whole: str, schema: int, at: Sequence[int | str] = ()) -> None:
    """Refuse a document that is no object, or of another schema: ConfigError."""
    if not isinstance(value, dict):
        raise wrong(whole, at, "an object is expected", value)
    found = value.get("schema")
    if type(found) is not int or found != schema:
        raise wrong(whole, (*at, "schema"), f"schema {schema} is expected", found)


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 - the engine runs without it

    return TypeAdapter(kind)


class Checked:
    """A record that checks more than each member, or fills in what files lack; null is absent."""

    __slots__ = ()
    needed: ClassVar[tuple[str, ...]] = ()  # may not be missing, although they have defaults

    @classmethod
    def filled(cls, value: Plain, known: Plain) -> Plain:
        """The hostile object before its members are read."""
        del known
        return value

    def checked(self, value: Plain, known: Plain) -> Any:
        """Return what stands for the record; `require` refuses it."""
        del value, known
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Plain:
        """The checks around what pydantic makes of the members."""

        def check(value: Any, members: Callable[[Any], Any], info: Any) -> Any:
            if isinstance(value, dict):
                value = {name: each for name, each in value.items() if each is not None}
                for name in cls.needed:
                    require(name in value, "a value is expected", name, got=None)
                value = cls.filled(value, info.context)
            made = members(value)
            return made.checked(value, info.context) if isinstance(value, dict) else made

        function = {"type": "with-info", "function": check}
        return {"type": "function-wrap", "function": function, "schema": handler(source)}


@dataclass(frozen=True, slots=True)
class By:
    """A member that a function reads: of the hostile value, and of what checks left before."""

    function: Callable[[Any, Plain], Any]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Plain:
        """A call of the function."""

        def call(value: Any, info: Any) -> Any:
            return self.function(value, info.context)

        return {"type": "function-plain", "function": {"type": "with-info", "function": call}}


@dataclass(frozen=True, slots=True)
class Bound:
    """Rules that pydantic holds a plain type to, by the names of pydantic_core's schemas."""

    rules: tuple[tuple[str, Any], ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Plain:
        """The type's own schema with the rules; reading an array ends at the first wrong value."""
        schema: Plain = handler(source) | dict(self.rules)
        if schema["type"] == "dict":
            return schema | {"keys_schema": {"type": "str", "strict": True, "max_length": 64}}
        is_array = schema["type"] in ("list", "tuple")
        return schema | ({"fail_fast": True} if is_array else {"strict": True})


EXACT = Bound(())  # true or false, say, but neither 1 nor "yes"


def within(low: float = -MOST, high: float = MOST) -> Bound:
    """A finite number from low to high, both included."""
    return Bound((("ge", low), ("le", high)))


def chars(most: int, pattern: str | None = None) -> Bound:
    """Text of at most that many characters; all of it matches `pattern` if there is one."""
    form = () if pattern is None else (("pattern", f"^(?:{pattern})$"),)
    return Bound((("max_length", most), *form))


def many(most: int, least: int = 0) -> Bound:
    """An array or object of that many members."""
    return Bound((("max_length", most), ("min_length", least)))


def one_of(*words: str) -> By:
    """One of these texts."""

    def check(value: Any, _: Plain) -> str:
        is_one = isinstance(value, str) and value in words
        require(is_one, f"one of {', '.join(words)} is expected")
        return cast("str", value)

    return By(check)


def loose(most: int, least: int = 0, *, is_line: bool = False) -> By:
    """Text, or a finite number as its text; without white space around it if `least` or a line."""

    def check(value: Any, _: Plain) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool):
            require(abs(value) <= MOST, "a finite number is expected")
            value = f"{value}"
        require(isinstance(value, str), "text is expected")
        text: str = value.strip() if least or is_line else value
        require(len(text) >= least, "text is expected")
        require(len(text) <= most, f"text of at most {most:,} characters is expected", got=text)
        require(not re.search("[\ud800-\udfff]", text), "valid Unicode is expected")
        require(text.isprintable() or not is_line, "text without control characters is expected")
        return text

    return By(check)


# --- for readers of arrays ------------------------------------------------------------------


def items(value: Any, length: int, *at: int | str) -> list[Any]:
    """An array with so many values."""
    require(isinstance(value, list), "an array is expected", *at, got=value)
    require(len(value) == length, f"{length} values are expected", *at, got=len(value))
    return cast("list[Any]", value)


def whole_number(value: Any, low: int, high: int, *at: int | str) -> int:
    """A whole number from low to high."""
    if type(value) is not int or not low <= value <= high:
        raise WrongValueError(f"a whole number from {low} to {high} is expected", at, value)
    return value


def measured(value: Any, *at: int | str, most: float = MOST) -> float:
    """A number that may be infinite or unknown: null is NaN, infinities are texts."""
    if value is None:
        return math.nan
    if value in ("inf", "-inf"):
        return float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= most:
        raise WrongValueError("a number, null, inf or -inf is expected", at, value)
    return float(value)
