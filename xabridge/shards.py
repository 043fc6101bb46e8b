"""Queues that are partitioned by a key: which shard a key belongs to. The messages of one key are in one queue, so that
they stay in order.

    tx["broker"].send(shard_address("orders", customer, 16), Message(order))

The shards of `orders` are the queues `orders#0` to `orders#15`. The shard of a key is the CRC-32 of its octets modulo
the number of shards. This never changes, and can be computed anywhere: in Spark SQL it is
`crc32(CAST(key AS string)) % 16`. So the number of shards must not change while messages wait.
"""

from __future__ import annotations

from zlib import crc32


def shard_of(key: str | bytes | int | None, shards: int) -> int:
    """The shard of a key, from 0. Text counts as its UTF-8, a whole number as its decimal digits, and None as an empty
    text. ValueError: there has to be one shard at least."""
    if shards < 1:
        raise ValueError(f"a queue has one shard at least, not {shards}")
    text = "" if key is None else key
    return crc32(text if isinstance(text, bytes) else str(text).encode("utf-8")) % shards


def shard_address(address: str, key: str | bytes | int | None, shards: int) -> str:
    """The queue for the messages of a key: that of its shard."""
    return shard_queue(address, shard_of(key, shards))


def shard_queue(address: str, shard: int) -> str:
    """The queue of a shard."""
    return f"{address}#{shard}"
