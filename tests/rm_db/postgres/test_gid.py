"""These tests cover gids, the text form of xids, and foreign entries in pg_prepared_xacts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rm_db.postgres.gid import decode_gid, encode_gid
from xa import NULL_XID, Code, XaError, Xid

XIDS = st.builds(Xid, st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=64), st.binary(min_size=0, max_size=64))
MAX_GID = 199


@given(XIDS)
def test_there_and_back(xid: Xid) -> None:
    gid = encode_gid(xid)
    assert decode_gid(gid) == xid
    assert len(gid) <= MAX_GID
    assert b"'" not in gid
    assert b"\\" not in gid


def test_a_gid_that_pgjdbc_wrote() -> None:
    """RecoveredXid of pgjdbc: format id, and base64 without line breaks."""
    assert decode_gid(b"131077_MS1hMDBmYzc1Og==_LTE=") == Xid(131077, b"1-a00fc75:", b"-1")


def test_what_is_no_xid_is_told_apart() -> None:
    assert decode_gid(b"1_YQ==_") == Xid(1, b"a", b"")  # canonical, and an xid: with an empty bqual

    for gid in (
        b"",
        b"my transaction",
        b"1_YQ==",
        b"1_YQ_",
        b"01_YQ==_",
        b"-1__",
        b"-5_YQ==_YQ==",
        b"4294967296_YQ==_YQ==",
        b"1_\xff\xfe_YQ==",
        "1_YQ==_é".encode("latin-1"),
        b"1_YQ==_YQ==\n",
        b"1_YQ==_YQ==_",
    ):
        assert decode_gid(gid) is None, gid


def test_the_null_xid_has_no_gid() -> None:
    with pytest.raises(XaError) as raised:
        encode_gid(NULL_XID)
    assert raised.value.code is Code.XAER_INVAL
