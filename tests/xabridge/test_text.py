"""These tests check how ages, durations, and the locks of a branch are written as text."""

from __future__ import annotations

import pytest

from xa.holdings import Holding, Relation
from xa.printable import escaped
from xabridge.text import age, duration, held, listed, several

FROM, TO, LOCKED = Relation.FROM, Relation.TO, Relation.LOCKED


def test_ages_and_durations() -> None:
    for seconds, text in (
        (None, "?"), (-3.0, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 m"), (7199, "119 m"), (7200, "2 h"),
        (172_799, "47 h"), (172_800, "2 d"),
    ):  # fmt: skip
        assert age(seconds) == text
    for text, told in (("90", 90), ("90s", 90), ("5m", 300), ("2 h", 7200), ("1.5d", 129_600)):
        assert duration(text) == told
    for text in ("", "soon", "-5m", "5 weeks", "5mm", "1e3"):
        with pytest.raises(ValueError, match="is not a duration: write 90s, 5m, 2h or 1d"):
            duration(text)


HELD = {
    "nothing": ((), 0, ""),
    "one": ((Holding(FROM, "orders", "message", 1),), 0, "1 message from orders"),
    "two queues": (
        (Holding(FROM, "orders", "message", 1), Holding(TO, "invoices", "message", 1)),
        0,
        "2 messages: 1 from orders, 1 to invoices",
    ),
    "rows": ((Holding(LOCKED, "public.orders", "row", 3),), 0, "3 rows locked in public.orders"),
    "nobody knows how many": (
        (Holding(LOCKED, "public.orders", "row"), Holding(LOCKED, "public.lines", "row")),
        0,
        "rows locked in public.orders, public.lines",
    ),
    "of some it is known": (
        (Holding(LOCKED, "a", "row"), Holding(LOCKED, "b", "row", 2)),
        0,
        "rows locked in a, b (2)",
    ),
    "both": (
        (Holding(FROM, "orders", "message", 1), Holding(LOCKED, "t", "row", 2)),
        0,
        "1 message from orders; 2 rows locked in t",
    ),
    "more than is told": ((Holding(FROM, "q", "message", 5),), 2, "5 messages from q; and more in 2 places"),
    "a name with a bell": ((Holding(FROM, "q\x07", "message", 5),), 0, "5 messages from q\\x07"),
}


@pytest.mark.parametrize(("holdings", "omitted", "text"), HELD.values(), ids=HELD)
def test_holdings(holdings: tuple[Holding, ...], omitted: int, text: str) -> None:
    assert held(holdings, omitted) == text


def test_words() -> None:
    assert [several(count, "branch") for count in (0, 1, 2)] == ["0 branches", "1 branch", "2 branches"]
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert escaped("größe · …") == "größe · …"
    assert escaped("a\nb\x9b") == "a\\nb\\x9b"
