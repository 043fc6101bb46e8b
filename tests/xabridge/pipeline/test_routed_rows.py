"""These tests split rows by the column that names their table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from xabridge.pipeline.core import BatchRefused
from xabridge.pipeline.routing import Routing
from xabridge.pipeline.spark.routed_rows import split

PLACES = (("orders", 0), ("returns", 1), ("shop:orders", 0))
STRICT = Routing(("o", "r", "never"), "kind", PLACES)
LENIENT = Routing(("o", "r", "never"), "kind", PLACES, default=1)


def _split(routing: Routing[str], kinds: list[str | None]) -> dict[str, list[int]]:
    batch = pa.record_batch([pa.array(kinds, pa.string()), pa.array(range(len(kinds)))], names=["kind", "number"])
    return {target: rows.column("number").to_pylist() for target, rows in split(routing, batch, "table")}


def test_each_target_gets_its_rows_in_their_order() -> None:
    assert _split(STRICT, ["orders", "returns", "shop:orders", "orders"]) == {"o": [0, 2, 3], "r": [1]}
    assert _split(STRICT, ["returns"]) == {"r": [0]}
    assert _split(STRICT, []) == {}
    assert _split(Routing(("all",)), ["whatever", None]) == {"all": [0, 1]}
    assert _split(Routing(), ["whatever"]) == {}


def test_rows_that_name_no_target_go_by_the_default_or_are_refused() -> None:
    assert _split(LENIENT, [None, "orders", "unknown", None]) == {"r": [0, 2, 3], "o": [1]}
    assert _split(LENIENT, [None, None]) == {"r": [0, 1]}
    refused: list[tuple[list[str | None], str]] = [
        (["orders", "unknown"], "'unknown'"),
        (["orders", None], "null"),
        ([None], "null"),
    ]
    for kinds, told in refused:
        with pytest.raises(
            BatchRefused, match=rf"column kind is {told}, and names none .*\(orders, returns, "
        ) as error:
            _split(STRICT, kinds)
        assert error.value.of_rows, "the search for the row at fault has to find it"
