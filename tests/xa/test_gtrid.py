"""These tests cover Gtrid, which tells in at most 64 octets to whom a global transaction belongs and where its decision
is.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xa import FORMAT_ID, NULL_XID, Gtrid, Xid, check_node, log_prefix, node_prefix
from xa.gtrid import incarnation_name, incarnation_prefix

NODES = st.text("ABCXYZabcxyz0189._-", min_size=1, max_size=32)
EIGHT = st.binary(min_size=8, max_size=8)
INCARNATIONS = st.one_of(EIGHT, st.integers(0, 2**32 - 1))
GTRIDS = st.builds(Gtrid, NODES, EIGHT, INCARNATIONS, st.integers(0, 2**64 - 1))


@pytest.mark.slow
@given(GTRIDS)
def test_round_trips_within_an_xid(gtrid: Gtrid) -> None:
    octets = gtrid.encode()
    assert Gtrid.decode(octets) == gtrid
    assert Gtrid.of(Xid(FORMAT_ID, octets, b"shop")) == gtrid


@pytest.mark.slow
@given(GTRIDS)
def test_begins_with_its_prefixes(gtrid: Gtrid) -> None:
    octets = gtrid.encode()
    assert octets.startswith(node_prefix(gtrid.node))
    assert octets.startswith(log_prefix(gtrid.node, gtrid.log_id))
    assert octets.startswith(incarnation_prefix(gtrid.node, gtrid.log_id, gtrid.incarnation))


@given(NODES, NODES)
def test_no_node_is_the_prefix_of_another(one: str, other: str) -> None:
    assert node_prefix(one).startswith(node_prefix(other)) == (one == other)


@given(GTRIDS, st.integers(0, 2**64 - 1))
def test_within_an_incarnation_the_octets_are_in_the_order_of_the_transactions(one: Gtrid, sequence: int) -> None:
    other = Gtrid(one.node, one.log_id, one.incarnation, sequence)
    assert (one.encode() < other.encode()) == (one.sequence < other.sequence)


@given(GTRIDS, INCARNATIONS)
def test_incarnations_never_share_a_gtrid(one: Gtrid, other: bytes | int) -> None:
    assert (one.encode() == Gtrid(one.node, one.log_id, other, one.sequence).encode()) == (one.incarnation == other)


def test_layout() -> None:
    gtrid = Gtrid("orders-1", bytes(range(8)), b"\x3f\xa9\x1c\x00\x01\x02\x03\x04", 8231)
    tail = b"\x3f\xa9\x1c\x00\x01\x02\x03\x04" + b"\x00" * 6 + b"\x20\x27"
    assert gtrid.encode() == b"orders-1\x00" + bytes(range(8)) + tail
    assert str(gtrid) == "orders-1·3fa91c·8231"
    assert incarnation_name(gtrid.incarnation) == "3fa91c"


def test_the_layout_of_counters_is_read_as_it_was_written_by_former_versions() -> None:
    gtrid = Gtrid("orders-1", bytes(range(8)), 17, 8231)
    assert gtrid.encode() == b"orders-1\x00" + bytes(range(8)) + b"\x00\x00\x00\x11" + b"\x00" * 6 + b"\x20\x27"
    assert str(gtrid) == "orders-1·17·8231"


def test_longest_fits_an_xid() -> None:
    assert len(Gtrid("n" * 32, b"\xff" * 8, b"\xff" * 8, 2**64 - 1).encode()) == 57


@pytest.mark.parametrize("node", ["", "n" * 33, "a b", "a\0b", "ä", "a/b", "a\n"])
def test_node_ids_that_are_none(node: str) -> None:
    with pytest.raises(ValueError, match="node id"):
        check_node(node)
    with pytest.raises(ValueError, match="node id"):
        Gtrid(node, bytes(8), 0, 0)


@pytest.mark.parametrize(
    ("log_id", "incarnation", "sequence", "message"),
    [
        (bytes(7), 0, 0, "log id has 7 octets"),
        (bytes(8), bytes(7), 0, "incarnation has 7 octets"),
        (bytes(8), bytes(4), 0, "incarnation has 4 octets"),
        (bytes(8), -1, 0, "incarnation -1"),
        (bytes(8), 2**32, 0, "incarnation 4294967296 does not fit"),
        (bytes(8), 0, -1, "sequence -1"),
        (bytes(8), 0, 2**64, "does not fit 64 bits"),
    ],
)
def test_bounds(log_id: bytes, incarnation: bytes | int, sequence: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gtrid("n", log_id, incarnation, sequence)


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"n",
        b"n\0",
        b"n\0" + bytes(19),  # one short
        b"n\0" + bytes(21),  # one long, or three short
        b"n\0" + bytes(23),
        b"n\0" + bytes(25),
        b"n\0" + bytes(8),
        b"\0" + bytes(20),  # no node
        b"n" * 33 + b"\0" + bytes(20),
        b"a b\0" + bytes(20),
        b"\xe4\0" + bytes(20),
    ],
)
def test_octets_of_others(octets: bytes) -> None:
    with pytest.raises(ValueError, match="not a gtrid of ours"):
        Gtrid.decode(octets)
    if octets:
        assert Gtrid.of(Xid(FORMAT_ID, octets)) is None


def test_another_format_id_is_not_ours() -> None:
    octets = Gtrid("n", bytes(8), 1, 1).encode()
    assert Gtrid.of(Xid(FORMAT_ID + 1, octets)) is None
    assert Gtrid.of(NULL_XID) is None


@given(st.binary(min_size=1, max_size=64))
def test_octets_that_decode_encode_to_themselves(octets: bytes) -> None:
    try:
        gtrid = Gtrid.decode(octets)
    except ValueError:
        return
    assert gtrid.encode() == octets
