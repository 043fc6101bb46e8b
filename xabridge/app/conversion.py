"""Values as JSON and AMQP have them, and as a handler declares them: `reader_of` makes what turns one into the other.

    read = reader_of(Order)
    read({"number": 7, "customer": "Ada"})     # Order(number=7, customer="Ada"); MessageUnfit says what is wrong

Types of pydantic and msgspec are read by these libraries, also where they stand within others: `list[Order]`. They are
loaded by the maker of the types, never by this module alone. What the standard library has is read here: dataclasses,
enums, dates, UUID, Decimal, and lists, sets, tuples, maps and unions of these. It is strict, because a wrong message
belongs into the dead letters and not into a table: a number is no text, and a Decimal is not made of a float.
"""

from __future__ import annotations

import base64
import dataclasses
import threading
import types
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Reader = Callable[[Any], Any]


class MessageUnfit(Exception):
    """A message does not fit what its handler declares. The text says what is wrong, and where."""

    def __init__(self, what: str, *where: Any) -> None:
        self.what = what
        self.where = where
        super().__init__(f"{'.'.join(map(str, where))}: {what}" if where else what)


class UnsupportedType(TypeError):
    """A type that nothing here can make from a message's body."""


def reader_of(wanted: Any) -> Reader:
    """What makes a `wanted` of a value. UnsupportedType: an unknown type."""
    with _MAKING:
        return _reader_of(wanted)


def _reader_of(wanted: Any) -> Reader:
    if any(hasattr(one, "__pydantic_validator__") for one in _within(wanted)):
        return _reader_of_pydantic(wanted)
    if any(hasattr(one, "__struct_fields__") for one in _within(wanted)):
        return _reader_of_msgspec(wanted)
    return _plain(wanted)


def json_reader_of(wanted: Any) -> Callable[[bytes], Any] | None:
    """The same for JSON as octets, where a library reads it at once; None: read it as JSON first."""
    if any(hasattr(one, "__pydantic_validator__") for one in _within(wanted)):
        return _reader_of_pydantic(wanted, "validate_json")
    if any(hasattr(one, "__struct_fields__") for one in _within(wanted)):
        return _reader_of_msgspec_json(wanted)
    return None


def _within(wanted: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The type, and those that it is made of."""
    seen = set() if seen is None else seen
    if id(wanted) in seen:
        return
    seen.add(id(wanted))
    yield wanted
    for argument in get_args(wanted):
        yield from _within(argument, seen)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        for hint in _hints(wanted).values():
            yield from _within(hint, seen)


def _hints(wanted: type) -> dict[str, Any]:
    try:
        return get_type_hints(wanted, include_extras=True)
    except NameError as error:
        raise UnsupportedType(
            f"{wanted.__qualname__}: {error}: its types have to be importable when it runs"
        ) from error


# --- the libraries' own ----------------------------------------------------------------------------------------------
def _reader_of_pydantic(wanted: Any, method: str = "validate_python") -> Reader:
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 — the maker of the type has loaded it

    validate = getattr(TypeAdapter(wanted), method)

    def read(value: Any) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in error.errors())
            raise MessageUnfit("; ".join(faults)) from error

    return read


def _reader_of_msgspec(wanted: Any) -> Reader:
    import msgspec  # noqa: PLC0415 — as above

    def read(value: Any) -> Any:
        try:
            return msgspec.convert(value, wanted)
        except msgspec.ValidationError as error:
            raise MessageUnfit(str(error)) from error

    return read


def _reader_of_msgspec_json(wanted: Any) -> Callable[[bytes], Any]:
    import msgspec  # noqa: PLC0415 — as above

    decoder = msgspec.json.Decoder(wanted)

    def read(octets: bytes) -> Any:
        try:
            return decoder.decode(octets)
        except msgspec.DecodeError as error:  # of which ValidationError is one
            raise MessageUnfit(str(error)) from error

    return read


# --- the standard library's ------------------------------------------------------------------------------------------
def _plain(wanted: Any) -> Reader:
    made = _simple(wanted) or _compound(wanted)
    if made is None:
        raise UnsupportedType(
            f"{_name(wanted)}: no message can be made into it; declare a model of pydantic, a dataclass, a struct of "
            "msgspec or a plain type, or give the app a codec that knows it"
        )
    return made


def _simple(wanted: Any) -> Reader | None:
    if wanted is Any or wanted is object:
        return lambda value: value
    if wanted is None or wanted is type(None):
        return _literal((None,))
    if wanted is float:
        return _checked((float, int), "a number", float)
    if wanted is bytes:
        return _bytes

    if wanted in _SIMPLE:
        return _checked(*_SIMPLE[wanted])
    if wanted in _FROM_TEXT:
        return _from_text(*_FROM_TEXT[wanted])
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return _enum(wanted)
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        return _dataclass(wanted)
    if hasattr(wanted, "__supertype__"):  # NewType
        return _plain(wanted.__supertype__)
    return None


def _compound(wanted: Any) -> Reader | None:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return _plain(arguments[0])
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        return _union(wanted, tuple(map(_plain, arguments)))
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _tuple(tuple(map(_plain, arguments)))
    if origin in _ARRAYS:
        return _array(_plain(arguments[0]), _ARRAYS[origin])
    if origin is dict:
        return _map(_plain(arguments[0]), _plain(arguments[1]))
    return None


def _name(wanted: Any) -> str:
    return getattr(wanted, "__qualname__", None) or str(wanted)


def _wrong(expected: str, value: Any) -> MessageUnfit:
    return MessageUnfit(f"expected {expected}, not {value!r:.100}")


def _checked(accepted: tuple[type, ...], expected: str, make: Reader | None = None) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            raise _wrong(expected, value)
        return value if make is None else make(value)

    return read


_SIMPLE: Final[dict[Any, tuple[tuple[type, ...], str]]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    str: ((str,), "text"),
    dict: ((dict,), "a map"),
    list: ((list,), "a list"),
}
_FROM_TEXT: Final[dict[Any, tuple[Callable[[str], Any], tuple[type, ...], str]]] = {
    datetime: (datetime.fromisoformat, (datetime,), "a date with a time, as 2026-11-23T05:30:00+00:00"),
    date: (date.fromisoformat, (date,), "a date, as 2026-11-23"),
    time: (time.fromisoformat, (time,), "a time, as 05:30:00"),
    UUID: (UUID, (UUID,), "a UUID"),
    Decimal: (Decimal, (Decimal, int), 'a decimal number as text, as "9.99"'),
}
_ARRAYS: Final[dict[Any, Callable[[list[Any]], Any]]] = {list: list, set: set, frozenset: frozenset, tuple: tuple}


def _from_text(parse: Callable[[str], Any], accepted: tuple[type, ...], expected: str) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, accepted) and not isinstance(value, bool):
            return Decimal(value) if Decimal in accepted and isinstance(value, int) else value
        if not isinstance(value, str):
            raise _wrong(expected, value)
        try:
            return parse(value)
        except (ValueError, InvalidOperation):
            raise _wrong(expected, value) from None

    return read


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _wrong("octets as base64", value)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise _wrong("octets as base64", value) from None


def _literal(values: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        for one in values:
            if value == one and type(value) is type(one):
                return one
        raise _wrong(" or ".join(map(repr, values)), value)

    return read


def _enum(wanted: type[Enum]) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, wanted):
            return value
        try:
            return wanted(value)
        except ValueError:
            raise _wrong(" or ".join(repr(one.value) for one in wanted), value) from None

    return read


def _union(wanted: Any, readers: tuple[Reader, ...]) -> Reader:
    def read(value: Any) -> Any:
        reasons = []
        for one in readers:
            try:
                return one(value)
            except MessageUnfit as error:
                reasons.append(str(error))
        raise MessageUnfit(f"none of {_name(wanted)} fits: {'; '.join(reasons)}")

    return read


def _at(where: Any, read: Reader, value: Any) -> Any:
    """read(value), whose error says where."""
    try:
        return read(value)
    except MessageUnfit as error:
        raise MessageUnfit(error.what, where, *error.where) from None


def _array(read: Reader, make: Callable[[list[Any]], Any]) -> Reader:
    def read_all(value: Any) -> Any:
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise _wrong("a list", value)
        return make([_at(number, read, one) for number, one in enumerate(value)])

    return read_all


def _tuple(readers: tuple[Reader, ...]) -> Reader:
    def read_all(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            raise _wrong(f"a list of {len(readers)}", value)
        return tuple(_at(number, read, one) for number, (read, one) in enumerate(zip(readers, value, strict=True)))

    return read_all


def _map(read_key: Reader, read: Reader) -> Reader:
    def read_all(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong("a map", value)
        return {_at(key, read_key, key): _at(key, read, one) for key, one in value.items()}

    return read_all


def _dataclass(wanted: type[Any]) -> Reader:
    if wanted in _BEING_MADE:  # it has a field of its own type
        return _BEING_MADE[wanted]
    fields = {field.name: field for field in dataclasses.fields(wanted) if field.init}
    needed = {
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    readers: dict[str, Reader] = {}

    def read(value: Any) -> Any:
        if isinstance(value, wanted):
            return value
        if not isinstance(value, dict):
            raise _wrong(f"a map with the fields of {wanted.__qualname__}", value)
        if missing := sorted(needed - value.keys()):
            raise MessageUnfit(f"missing {', '.join(missing)}")
        given = {name: _at(name, readers[name], one) for name, one in value.items() if name in readers}
        try:
            return wanted(**given)
        except (TypeError, ValueError) as error:  # of its own __post_init__
            raise MessageUnfit(f"expected what {wanted.__qualname__} takes: {error}") from error

    _BEING_MADE[wanted] = read
    try:
        hints = _hints(wanted)
        readers.update({name: _plain(hints[name]) for name in fields})
    finally:
        del _BEING_MADE[wanted]
    return read


_BEING_MADE: Final[dict[Any, Reader]] = {}
_MAKING: Final = threading.RLock()
