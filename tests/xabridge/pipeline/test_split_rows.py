"""These tests split rows by the column that names their table, and by the shards of an address."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest

from xabridge.pipeline import PipelineError
from xabridge.pipeline.core import AddressTarget, BatchRefused, Settings
from xabridge.pipeline.options import SinkOptions
from xabridge.pipeline.routing import Routing
from xabridge.pipeline.spark.routed_rows import by_shard, split
from xabridge.pipeline.spark.task_writer import layout

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
    refused: list[tuple[list[str | None], str]] = [(["orders", "unknown"], "'unknown'"), (["orders", None], "null")]
    for kinds, told in refused:
        with pytest.raises(BatchRefused, match=rf"kind is {told}, and names none .*\(orders, returns, ") as refusal:
            _split(STRICT, kinds)
        assert refusal.value.of_rows, "the search for the row at fault has to find it"


# --- by shard ---------------------------------------------------------------------------------------------------------
TARGET = AddressTarget("north", "orders", "customer", 4, (("south", "bestellungen"),))


def test_the_rows_of_a_key_go_to_one_queue_in_their_order() -> None:
    keys = [f"c{number % 7}" for number in range(100)]
    batch = pa.record_batch([pa.array(keys), pa.array(range(100))], names=["customer", "n"])
    written: dict[str, list[tuple[str, int]]] = {}
    places = set()
    for target, rows in by_shard(batch, TARGET):
        places.add((target.resource, target.address))
        for key, number in zip(rows.column("customer").to_pylist(), rows.column("n").to_pylist(), strict=True):
            assert target.address.endswith(f"#{zlib.crc32(key.encode()) % 4}")
            written.setdefault(key, []).append((target.address, number))
    assert places <= {(target.resource, target.address) for target in map(TARGET.shard, range(4))}
    assert sorted(number for some in written.values() for _, number in some) == list(range(100))
    for some in written.values():
        assert len({address for address, _ in some}) == 1
        assert some == sorted(some, key=lambda one: one[1])


def test_octets_numbers_and_nulls_are_keys_and_without_shards_all_rows_go_to_the_address() -> None:
    for array in (pa.array([b"7", None]), pa.array([7, None], pa.int32()), pa.array(["7", None])):
        batch = pa.record_batch([array], names=["customer"])
        found = {target.address: rows.num_rows for target, rows in by_shard(batch, TARGET)}
        assert found == {
            "orders#0": 1,
            f"{'bestellungen' if zlib.crc32(b'7') % 2 else 'orders'}#{zlib.crc32(b'7') % 4}": 1,
        }
    whole = AddressTarget("north", "orders")
    assert list(by_shard(batch, whole)) == [(whole, batch)]


def test_the_column_with_the_key_is_checked() -> None:
    options = SinkOptions(Settings("p", "sqlite:///l", ()), Routing(()), Routing((TARGET,)))
    assert layout(options, {"body": "string", "customer": "bigint"}).addresses.targets == (TARGET,)
    for columns, told in (
        ({}, "the query has body"),
        ({"customer": "double"}, "it is double"),
        ({"customer": "string", "other": "string"}, "a message has no other"),
    ):
        with pytest.raises(PipelineError, match=told):
            layout(options, {"body": "string", **columns})
