"""ax_reg and ax_unreg: a resource manager that registers dynamically."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import NULL_XID, TMJOIN, TMNOFLAGS, TMONEPHASE, TMRESUME, TMSUSPEND, AxCode, Code

from .client import RMID, Client, Contract, elsewhere, new_key, new_xid, refused

if TYPE_CHECKING:
    from .harness import Harness

REG = ("ax_reg", RMID, TMNOFLAGS)
UNREG = ("ax_unreg", RMID, TMNOFLAGS)


class TestRegistration(Contract):
    """Whose work it is, is asked at the first work, and again after each end."""

    @pytest.fixture(autouse=True)
    def capable(self, client: Client) -> None:
        """Skips what can't be."""
        if not client.registers:
            pytest.skip("does not register dynamically")

    def test_start_is_not_for_it(self, client: Client) -> None:
        for flags in (TMNOFLAGS, TMJOIN, TMRESUME):
            with refused(Code.XAER_PROTO, Code.XAER_NOTA):
                client.rm.start(new_xid(), RMID, flags)

    def test_registers_once_for_all_work_until_end(self, client: Client) -> None:
        xid = new_xid()
        client.registrar.answer = (AxCode.TM_OK, xid)
        assert client.registrar.calls == []
        keys = [new_key() for _ in range(3)]
        for key in keys:
            client.write(key)
        assert client.registrar.calls == [REG]
        client.end(xid)
        client.prepare(xid)
        client.commit(xid)
        assert client.registrar.calls == [REG]  # a registration with an xid ends by xa_end
        assert set(keys) <= client.harness.committed()

    def test_registers_anew_after_end(self, client: Client) -> None:
        first, second = client.ended(one := new_key()), client.ended(two := new_key())
        assert client.registrar.calls == [REG, REG]
        client.commit(first, TMONEPHASE)
        client.rollback(second)
        assert one in client.harness.committed()
        assert two not in client.harness.committed()

    def test_outside_any_transaction(self, client: Client) -> None:
        client.registrar.answer = (AxCode.TM_OK, NULL_XID)
        client.write(key := new_key())
        assert key in client.harness.committed()
        assert client.registrar.calls == [REG, UNREG]
        xid = client.ended(second := new_key())  # and then within one
        client.commit(xid, TMONEPHASE)
        assert second in client.harness.committed()

    def test_outside_and_the_unregistration_is_refused(self, client: Client) -> None:
        client.registrar.answer = (AxCode.TM_OK, NULL_XID)
        client.registrar.unreg_answer = AxCode.TMER_PROTO
        with refused(Code.XAER_PROTO):
            client.write(new_key())

    def test_joins(self, client: Client) -> None:
        xid = client.ended(first := new_key())
        with elsewhere():
            client.registrar.answer = (AxCode.TM_JOIN, xid)
            client.write(second := new_key())
            client.end(xid)
        client.prepare(xid)
        client.commit(xid)
        assert {first, second} <= client.harness.committed()

    def test_resumes(self, client: Client) -> None:
        xid = client.begun(first := new_key())
        client.end(xid, TMSUSPEND)
        client.registrar.answer = (AxCode.TM_RESUME, xid)
        client.write(second := new_key())
        client.end(xid)
        client.commit(xid, TMONEPHASE)
        assert {first, second} <= client.harness.committed()

    def test_the_manager_refuses(self, client: Client) -> None:
        for answer, code in (
            (AxCode.TMER_TMERR, Code.XAER_RMERR),
            (AxCode.TMER_INVAL, Code.XAER_INVAL),
            (AxCode.TMER_PROTO, Code.XAER_PROTO),
        ):
            client.registrar.answer = (answer, NULL_XID)
            with refused(code):
                client.write(key := new_key())
            assert key not in client.harness.committed()
            xid = client.ended(key)  # nothing is left of the refused registration
            client.commit(xid, TMONEPHASE)
            assert key in client.harness.committed()

    def test_an_xid_that_is_taken(self, client: Client) -> None:
        xid = client.ended(first := new_key())
        client.registrar.answer = (AxCode.TM_OK, xid)
        with refused(Code.XAER_DUPID):
            client.write(second := new_key())
        client.commit(xid, TMONEPHASE)
        assert first in client.harness.committed()
        assert second not in client.harness.committed()

    def test_a_client_that_dies_while_registered(self, harness: Harness, client: Client) -> None:
        other = Client(harness)
        xid = other.begun(key := new_key())
        harness.crash(other.rm)
        assert xid not in client.in_doubt()
        client.retrying("rollback", xid)
        assert key not in harness.committed()
