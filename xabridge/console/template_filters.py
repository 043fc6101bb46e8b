"""How values are written on a page: ages, amounts, octets, and names that a peer has chosen.

What a peer has chosen is shown with an escape for each character that hides or turns the text around, and long ones
are cut; the template engine makes it harmless as HTML.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from xa import Xid
from xa.printable import escaped
from xabridge.text import age, amount, held, octets, several, took, transaction_name

if TYPE_CHECKING:
    from collections.abc import Callable

MOST: Final = 120


def name(text: object, most: int = MOST) -> str:
    """A name that a peer has chosen, cut."""
    shown = escaped(str(text))
    inner = shown.strip(" ")
    if inner != shown:  # a name of spaces only could not be seen, nor clicked
        before = len(shown) - len(shown.lstrip(" "))
        shown = f"{'␣' * before}{inner}{'␣' * (len(shown) - before - len(inner))}"
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def long_text(text: object) -> str:
    """A text of several lines that a peer has chosen."""
    return "\n".join(escaped(line) for line in str(text).split("\n"))


def ago(ms: float | None) -> str:
    """How long ago a time in milliseconds was."""
    return "–" if ms is None else age(max(time.time() - ms / 1000, 0))


def until(ms: float | None) -> str:
    """How long it is until then."""
    return "never" if ms is None else age(max(ms / 1000 - time.time(), 0))


def moment(ms: float) -> str:
    """A time, for people."""
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def rate(value: float) -> str:
    """Messages per second; few are not none."""
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.1f}" if 0 < value < 9.95 else amount(value)


def branch(xid: str) -> str:
    """A transaction, by the xid of a branch."""
    return name(transaction_name(Xid.parse(xid)))


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "name": name,
    "long": long_text,
    "ago": ago,
    "until": until,
    "moment": moment,
    "rate": rate,
    "amount": amount,
    "octets": octets,
    "age": age,
    "took": took,
    "several": several,
    "held": held,
    "branch": branch,
}
