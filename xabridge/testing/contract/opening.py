"""open, close, rmids and flags."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from xa import (
    TMASYNC,
    TMFAIL,
    TMMIGRATE,
    TMNOMIGRATE,
    TMONEPHASE,
    TMREGISTER,
    TMSTARTRSCAN,
    TMSUCCESS,
    TMSUSPEND,
    TMUSEASYNC,
    Code,
    Handle,
    Xid,
)
from xa.flags import FLAG_RULES

from .client import RMID, ROLLED_BACK, Client, Contract, case, elsewhere, new_key, new_xid, plain, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from xa import ResourceManager

    from .harness import Harness

CALLS: dict[str, Callable[[ResourceManager, int, int, Xid], Any]] = {
    "start": lambda rm, rmid, flags, xid: rm.start(xid, rmid, flags),
    "end": lambda rm, rmid, flags, xid: rm.end(xid, rmid, flags),
    "prepare": lambda rm, rmid, flags, xid: rm.prepare(xid, rmid, flags),
    "commit": lambda rm, rmid, flags, xid: rm.commit(xid, rmid, flags),
    "rollback": lambda rm, rmid, flags, xid: rm.rollback(xid, rmid, flags),
    "recover": lambda rm, rmid, flags, xid: rm.recover(rmid, flags),  # noqa: ARG005 — one shape for all
    "forget": lambda rm, rmid, flags, xid: rm.forget(xid, rmid, flags),
    "complete": lambda rm, rmid, flags, xid: rm.complete(Handle(1), rmid, flags),  # noqa: ARG005
    "session": lambda rm, rmid, flags, xid: rm.session(rmid),  # noqa: ARG005
}
LEGAL = {"end": TMSUCCESS, "recover": TMSTARTRSCAN}
ONE_FLAG = [1 << bit for bit in range(20, 32)]


class TestOpening(Contract):
    """A resource manager instance: R0, R1, and who may call what with which flags."""

    def test_the_switch(self, client: Client) -> None:
        assert 0 < len(client.rm.name) <= 31
        assert client.rm.flags & ~(TMREGISTER | TMNOMIGRATE | TMUSEASYNC) == 0

    def test_two_instances_have_one_identity_where_they_share_branches(self, harness: Harness, client: Client) -> None:
        """The manager joins a branch through an instance of the same identity."""
        other = Client(harness)
        assert (client.rm.identity == other.rm.identity) == harness.capabilities.branches_shared
        other.rm.close("", RMID)

    def test_every_verb_before_open_is_refused(self, harness: Harness) -> None:
        rm = Client(harness, opened=False).rm
        for verb, call in CALLS.items():
            with case(verb), refused(Code.XAER_PROTO):
                call(rm, RMID, LEGAL.get(verb, 0), new_xid())

    def test_every_verb_after_close_is_refused(self, harness: Harness) -> None:
        client = Client(harness)
        assert client.rm.close("", RMID) is Code.XA_OK
        for verb, call in CALLS.items():
            with case(verb), refused(Code.XAER_PROTO):
                call(client.rm, RMID, LEGAL.get(verb, 0), new_xid())

    def test_another_rmid_is_refused_by_every_verb(self, client: Client) -> None:
        for verb, call in CALLS.items():
            with case(verb), refused(Code.XAER_INVAL):
                call(client.rm, RMID + 1, LEGAL.get(verb, 0), new_xid())

    def test_close_under_another_rmid_is_refused(self, client: Client) -> None:
        with refused(Code.XAER_INVAL):
            client.rm.close("", RMID + 1)
        assert client.in_doubt() is not None

    def test_open_again_is_allowed_with_the_same_rmid_only(self, client: Client) -> None:
        key = new_key()
        xid = client.begun(key)
        client.reopen()
        with refused(Code.XAER_INVAL):
            client.rm.open(client.harness.open_string, RMID + 1)
        client.write(second := new_key())  # the association is as it was
        client.end(xid)
        assert client.commit(xid, TMONEPHASE) is Code.XA_OK
        assert {key, second} <= client.harness.committed()

    def test_close_what_is_not_open(self, harness: Harness) -> None:
        client = Client(harness, opened=False)
        assert client.rm.close("", RMID) is Code.XA_OK
        client.reopen()
        assert client.rm.close("", RMID) is Code.XA_OK
        assert client.rm.close("", RMID) is Code.XA_OK

    def test_open_after_close(self, harness: Harness) -> None:
        client = Client(harness)
        client.rm.close("", RMID)
        client.reopen()
        key = new_key()
        assert client.commit(client.ended(key), TMONEPHASE) is Code.XA_OK
        assert key in harness.committed()
        client.rm.close("", RMID)

    def test_a_wrong_open_string(self, harness: Harness) -> None:
        client = Client(harness, opened=False)
        with refused(Code.XAER_INVAL) as raised:
            client.rm.open(harness.wrong_open_string, RMID)
        assert raised.value.message
        with refused(Code.XAER_PROTO):
            client.in_doubt()
        client.reopen()
        client.rm.close("", RMID)

    def test_close_while_associated_is_refused(self, client: Client) -> None:
        key = new_key()
        xid = client.begun(key)
        with refused(Code.XAER_PROTO):
            client.rm.close("", RMID)
        client.end(xid)
        assert client.commit(xid, TMONEPHASE) is Code.XA_OK
        assert key in client.harness.committed()

    def test_close_loses_a_suspended_association(self, harness: Harness, client: Client) -> None:
        leaver = Client(harness)
        key = new_key()
        xid = leaver.begun(key)
        leaver.end(xid, TMSUSPEND)
        assert leaver.rm.close("", RMID) is Code.XA_OK
        assert client.retrying("prepare", xid) in ROLLED_BACK
        assert key not in harness.committed()

    def test_close_leaves_prepared_branches(self, harness: Harness, client: Client) -> None:
        leaver = Client(harness)
        key = new_key()
        xid = leaver.prepared(key)
        leaver.rm.close("", RMID)
        assert xid in client.in_doubt()
        assert client.commit(xid) is Code.XA_OK
        assert key in harness.committed()

    def test_flags_that_a_verb_does_not_allow(self, client: Client) -> None:
        for verb, flag in product(CALLS.keys() & FLAG_RULES.keys(), (*ONE_FLAG, 1, 1 << 32, -1)):
            flags = LEGAL.get(verb, 0) | flag
            if not FLAG_RULES[verb].allows(flags):
                with case(verb, hex(flags)), refused(Code.XAER_INVAL):
                    CALLS[verb](client.rm, RMID, flags, new_xid())

    def test_end_needs_one_of_its_flags(self, client: Client) -> None:
        key = new_key()
        xid = client.begun(key)
        for flags in (0, TMSUCCESS | TMFAIL, TMSUCCESS | TMSUSPEND, TMFAIL | TMSUSPEND, TMMIGRATE):
            with refused(Code.XAER_INVAL):
                client.end(xid, flags)
        client.write(second := new_key())  # the association is as it was
        client.end(xid)
        client.commit(xid, TMONEPHASE)
        assert {key, second} <= client.harness.committed()

    def test_tmasync_where_it_is_not_offered(self, client: Client) -> None:
        if client.rm.flags & TMUSEASYNC:
            pytest.skip("offers TMASYNC: see asynchrony.py")
        for verb in ("start", "end", "prepare", "commit", "rollback", "forget"):
            with refused(Code.XAER_ASYNC):
                CALLS[verb](client.rm, RMID, LEGAL.get(verb, 0) | TMASYNC, new_xid())
        with refused(Code.XAER_ASYNC):
            client.rm.open(client.harness.open_string, RMID, TMASYNC)
        with refused(Code.XAER_INVAL):
            client.rm.complete(Handle(1), RMID)

    def test_another_thread_of_control_needs_no_open_of_its_own(self, client: Client) -> None:
        key = new_key()
        with elsewhere():
            xid = client.ended(key)
        assert plain(client.rm.commit(xid, RMID, TMONEPHASE)) is Code.XA_OK
        assert key in client.harness.committed()
