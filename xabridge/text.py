"""How things are written for people: ages, what a branch holds, names that came from elsewhere."""

from __future__ import annotations

import re
import shlex
import textwrap
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any, Final
from unicodedata import combining, east_asian_width

from xa import FORMAT_ID, Gtrid, Xid
from xa.printable import escaped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from xa.holdings import Holding, Relation

_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_WHOLE: Final = re.compile(r"[0-9]{1,19}")
MOST: Final = 2**63 - 1
NARROW: Final = 80
"""Columns of a terminal that every output fits."""
LONGEST_NAME: Final = 76
"""The most characters of a name that has a line of its own."""
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([smhd]?)")


def age(seconds: float | None) -> str:
    """The largest unit that is in it: "4 m"; "?" where it is not known."""
    if seconds is None:
        return "?"
    for unit, size in _UNITS:
        if seconds >= 2 * size or (unit == "s" and seconds >= 0):
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def took(seconds: float) -> str:
    """A short time."""
    if seconds < 0.00095:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.0095:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else age(seconds)


def whole_number(text: str) -> int:
    """A number or a count above 0 that a database can hold, for argparse."""
    found = int(text) if _WHOLE.fullmatch(text) else 0
    if not 0 < found <= MOST:
        raise ArgumentTypeError(f"expected a whole number from 1 to {MOST}")
    return found


def duration(text: str) -> float:
    """The seconds in "90", "90s", "5m", "2h" or "1d"; ValueError for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write 90s, 5m, 2h or 1d")
    return float(match[1]) * dict(_UNITS)[match[2] or "s"]


def transaction_name(xid: Xid) -> str:
    """The short name of the global transaction that a branch belongs to; of one that somebody else began, its xid
    without the branch."""
    ours = Gtrid.of(xid)
    return str(ours) if ours is not None else str(Xid(xid.format_id, xid.gtrid)).rstrip("_")


def gtrid_name(gtrid: bytes) -> str:
    """The same for a gtrid of ours, from a decision."""
    return transaction_name(Xid(FORMAT_ID, gtrid))


def ending_command(name: str, gone: Iterable[str]) -> str:
    """The command that ends the decision of the transaction `name` without these resources."""
    return f"xabridge recover end {name}" + "".join(f" --gone {shlex.quote(escaped(one))}" for one in gone)


def several(count: int, unit: str) -> str:
    """ "1 message", "2 messages", "2 branches"."""
    if count == 1:
        return f"1 {unit}"
    return f"{count} {unit}{'es' if unit.endswith(('ch', 's', 'x')) else 's'}"


def listed(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def held(holdings: Sequence[Holding], omitted: int = 0) -> str:
    """A branch's holdings in words: "2 messages: 1 from orders, 1 to invoices"; "" for nothing."""
    by_unit: dict[str, list[Holding]] = {}
    for holding in holdings:
        by_unit.setdefault(escaped(holding.unit), []).append(holding)
    said = "; ".join(_held_units(unit, those) for unit, those in by_unit.items())
    return f"{said}; and more in {several(omitted, 'place')}" if omitted else said


def _held_units(unit: str, holdings: list[Holding]) -> str:
    counts = [holding.count for holding in holdings]
    if None in counts:
        return _uncounted(unit, holdings)
    total = several(sum(filter(None, counts)), unit)
    if len(holdings) == 1:
        return f"{total} {_where(holdings[0])}"
    return f"{total}: " + ", ".join(f"{holding.count} {_where(holding)}" for holding in holdings)


def _uncounted(unit: str, holdings: list[Holding]) -> str:
    """The text where it is known only that there are some: "rows locked in a, b"."""
    places: dict[Relation, list[str]] = {}
    for holding in holdings:
        counted = "" if holding.count is None else f" ({holding.count})"
        places.setdefault(holding.relation, []).append(escaped(holding.place) + counted)
    units = several(2, unit).removeprefix("2 ")
    return "; ".join(f"{units} {relation.value} {', '.join(where)}" for relation, where in places.items())


def _where(holding: Holding) -> str:
    return f"{holding.relation.value} {escaped(holding.place)}"


def amount(number: float) -> str:
    """A count or a rate in at most five characters: 7, 0.3, 12043, 123k, 4.5M."""
    if number < 10 and number != int(number):
        return f"{number:.1f}"
    if number < 100_000:
        return f"{number:.0f}"
    for unit in "kMG":
        number /= 1000
        if number < 1000:
            return f"{number:.1f}{unit}" if number < 10 else f"{number:.0f}{unit}"
    return f"{number / 1000:.0f}T"


def octets(number: float) -> str:
    """A size in at most five characters: 512, 12k, 4.5M."""
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.1f}{unit}" if unit and number < 10 else f"{number:.0f}{unit}"
        number /= 1000
    return f"{number:.0f}T"


def json_value(value: Any) -> Any:
    """What JSON can say of a value; the rest as text."""
    if isinstance(value, dict):
        return {str(key): json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """`name`, or its beginning with "…" behind it."""
    return name if len(name) <= longest else name[: longest - 1] + "…"


def paragraph(text: str, first: str = "", others: str = "  ") -> list[str]:
    """`text` in lines of 80 columns; what has no space in it is never broken, since it is copied."""
    return textwrap.wrap(
        text, NARROW, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )


def unreachable_lines(unreachable: Mapping[str, str]) -> list[str]:
    """A line about each that could not be reached, and why."""
    return [f"{escaped(name)} could not be reached: {escaped(why)}" for name, why in unreachable.items()]


def columns(text: str) -> int:
    """How many columns of a terminal `text` takes."""
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def table_row(cells: Sequence[str], widths: Sequence[int], right: Collection[int] = (), gap: str = "  ") -> str:
    """One line of a table. The cells at the positions `right` stand at the right of their columns. What is wider than
    its column is not cut; the last width may be 0."""
    padded = []
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        padding = " " * (width - columns(cell))
        padded.append(padding + cell if at in right else cell + padding)
    return gap.join(padded).rstrip()
