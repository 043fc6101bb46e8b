"""These tests cover Xid: bounds, equality, order, and the text form."""

from __future__ import annotations

import pickle
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xa import NULL_XID, Xid

XIDS = st.builds(
    Xid,
    st.integers(0, 2**31 - 1),
    st.binary(min_size=1, max_size=64),
    st.binary(min_size=0, max_size=64),
)


@given(XIDS)
def test_text_form_round_trips(xid: Xid) -> None:
    assert Xid.parse(str(xid)) == xid


@given(XIDS)
def test_text_form_is_what_pgjdbc_and_psycopg_write(xid: Xid) -> None:
    # both: the decimal format id and two standard Base64 texts with padding, joined by underscores
    gtrid, bqual = (b64encode(part).decode("ascii") for part in (xid.gtrid, xid.bqual))
    assert str(xid) == f"{xid.format_id}_{gtrid}_{bqual}"
    assert len(str(xid)) <= 188


@given(XIDS, XIDS)
def test_all_three_parts_count_in_equality_and_order(one: Xid, other: Xid) -> None:
    parts = [(xid.format_id, xid.gtrid, xid.bqual) for xid in (one, other)]
    assert (one == other) == (parts[0] == parts[1])
    assert (one < other) == (parts[0] < parts[1])
    if one == other:
        assert hash(one) == hash(other)


def test_xids_that_somebody_chose_to_be_alike_have_different_hashes() -> None:
    """A peer names branches as it likes; it must not be able to make a table of them slow."""
    octets = [number.to_bytes(4, "big") for number in range(2000)]
    alike = [Xid(1, half, half) for half in octets]
    swapped = [Xid(1, one, other) for one, other in zip(octets, reversed(octets), strict=True)]
    assert len({hash(xid) for xid in alike + swapped}) == 4000


@given(XIDS)
def test_pickles(xid: Xid) -> None:
    assert pickle.loads(pickle.dumps(xid)) == xid  # noqa: S301 — our own bytes


def test_null_xid() -> None:
    assert NULL_XID.is_null
    assert not Xid(0, b"g").is_null
    assert Xid(-1, b"", b"") == NULL_XID
    assert str(NULL_XID) == "-1__"
    assert Xid.parse("-1__") == NULL_XID


@pytest.mark.parametrize(
    ("format_id", "gtrid", "bqual", "message"),
    [
        (-2, b"g", b"", "format id -2 is not between 0 and 2147483647, nor -1"),
        (2**31, b"g", b"", "format id 2147483648 is not between"),
        (0, b"", b"", "gtrid has 0 octets, allowed are 1 to 64"),
        (0, b"g" * 65, b"", "gtrid has 65 octets"),
        (0, b"g", b"b" * 65, "bqual has 65 octets, allowed are 0 to 64"),
        (-1, b"g", b"", "null XID"),
        (-1, b"", b"b", "null XID"),
    ],
)
def test_bounds(format_id: int, gtrid: bytes, bqual: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Xid(format_id, gtrid, bqual)


@pytest.mark.parametrize(
    ("format_id", "gtrid", "bqual", "message"),
    [
        (0, "g", b"", "not str and bytes"),
        (0, b"g", bytearray(b"b"), "not bytes and bytearray"),
        (0, memoryview(b"g"), b"", "not memoryview and bytes"),
        (0.0, b"g", b"", "format id is an int, not float"),
        ("0", b"g", b"", "format id is an int, not str"),
        (True, b"g", b"", "format id is an int, not bool"),
    ],
)
def test_types(format_id: int, gtrid: bytes, bqual: bytes, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Xid(format_id, gtrid, bqual)


def test_is_a_value() -> None:
    with pytest.raises(AttributeError):
        Xid(0, b"g").gtrid = b"h"  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0_Zw==",  # two parts
        "0_Zw==_Yg==_",  # four
        "_Zw==_Yg==",
        "0__Yg==",  # empty gtrid
        "00_Zw==_Yg==",  # not the canonical number
        "+0_Zw==_Yg==",
        "-0_Zw==_Yg==",
        " 0_Zw==_Yg==",
        "0_Zw==_Yg== ",
        "0_Zw==_Yg==\n",
        "٠_Zw==_Yg==",  # an Arabic digit
        "2147483648_Zw==_",
        "-2_Zw==_",
        "-1_Zw==_",
        "0_Zw_Yg==",  # padding is missing
        "0_Zw=_Yg==",
        "0_Zw===_Yg==",
        "0_Zx==_Yg==",  # bits behind the last octet: another spelling of the same gtrid
        "0_Z g=_Yg==",
        "0_-_==_",  # the URL alphabet
        "0_=Zw==_Yg==",
        "0_" + "A" * 88 + "_",  # 66 octets
        "0_Zw==_" + "A" * 88,
        "99999999999999999999_Zw==_",
        "orders-1·17·8231",
    ],
)
def test_texts_that_are_no_xids(text: str) -> None:
    with pytest.raises(ValueError, match="not an xid"):
        Xid.parse(text)


def parsed(text: str) -> Xid | None:
    try:
        return Xid.parse(text)
    except ValueError:
        return None


@given(st.text(alphabet="0123456789_=+/AZaz-", max_size=40))
def test_a_text_that_parses_is_the_text_of_its_xid(text: str) -> None:
    xid = parsed(text)
    assert xid is None or str(xid) == text
