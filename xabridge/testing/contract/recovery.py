"""recover: what is in doubt, in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xa import TMENDRSCAN, TMNOFLAGS, TMSTARTRSCAN, Code, ThreadOfControl, Xid, entered

from .client import RMID, Client, Contract, elsewhere, new_key, refused

if TYPE_CHECKING:
    from .harness import Harness


class TestRecovery(Contract):
    """Scans."""

    def test_lists_what_is_prepared_and_nothing_else(self, client: Client) -> None:
        prepared = client.prepared(new_key())
        idle = client.ended(new_key())
        active = client.begun(new_key())
        assert client.in_doubt() & {prepared, idle, active} == {prepared}
        client.end(active)
        for xid in (prepared, idle, active):
            client.rollback(xid)
        assert not client.in_doubt() & {prepared, idle, active}

    def test_pages(self, client: Client) -> None:
        xids = self.several(client)
        for count in (1, 2, len(xids), len(xids) + 1):
            found = self.scan(client, count)
            assert set(found) >= set(xids)
            assert len(found) == len(set(found))
        self.roll_back(client, xids)

    def test_a_whole_scan_in_one_call(self, client: Client) -> None:
        xids = self.several(client)
        page = client.rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN, 1000)
        assert set(page) >= set(xids)
        with refused(Code.XAER_INVAL):
            client.rm.recover(RMID, TMNOFLAGS, 1000)
        self.roll_back(client, xids)

    def test_a_scan_ends(self, client: Client) -> None:
        xids = self.several(client)
        first = client.rm.recover(RMID, TMSTARTRSCAN, 1)
        second = client.rm.recover(RMID, TMENDRSCAN, 1)
        assert len({*first, *second}) == 2
        with refused(Code.XAER_INVAL):
            client.rm.recover(RMID, TMNOFLAGS, 1)
        self.roll_back(client, xids)

    def test_a_scan_that_is_at_its_end_stays_there(self, client: Client) -> None:
        assert len(client.rm.recover(RMID, TMSTARTRSCAN, 1000)) < 1000
        assert list(client.rm.recover(RMID, TMNOFLAGS, 1000)) == []
        assert list(client.rm.recover(RMID, TMENDRSCAN, 1000)) == []

    def test_a_scan_starts_over(self, client: Client) -> None:
        xids = self.several(client)
        client.rm.recover(RMID, TMSTARTRSCAN, 2)
        assert set(self.scan(client, 2)) >= set(xids)
        self.roll_back(client, xids)

    def test_without_a_scan(self, client: Client) -> None:
        for flags in (TMNOFLAGS, TMENDRSCAN):
            with refused(Code.XAER_INVAL):
                client.rm.recover(RMID, flags, 10)

    def test_a_count_that_is_none(self, client: Client) -> None:
        for count in (0, -1):
            with refused(Code.XAER_INVAL):
                client.rm.recover(RMID, TMSTARTRSCAN, count)

    def test_a_scan_belongs_to_its_thread_of_control(self, client: Client) -> None:
        xids = self.several(client)
        client.rm.recover(RMID, TMSTARTRSCAN, 1)
        other = ThreadOfControl()
        with entered(other):
            with refused(Code.XAER_INVAL):
                client.rm.recover(RMID, TMNOFLAGS, 1)
            client.rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN, 1)
        assert len(client.rm.recover(RMID, TMENDRSCAN, 1)) == 1  # still open here
        self.roll_back(client, xids)

    def test_completing_the_branches_of_a_page_does_not_disturb_the_scan(self, client: Client) -> None:
        """Recovery completes branches while it pages; it must not skip others by that."""
        xids = self.several(client)
        found: list[Xid] = []
        flags = TMSTARTRSCAN
        while page := client.rm.recover(RMID, flags, 2):
            flags = TMNOFLAGS
            found += page
            for xid in page:
                if xid in xids:
                    client.rollback(xid)
        client.rm.recover(RMID, TMENDRSCAN, 1)
        assert set(found) >= set(xids)
        assert not client.in_doubt() & set(xids)

    def test_a_thread_that_is_at_work_may_scan(self, client: Client) -> None:
        prepared = client.prepared(new_key())
        xid = client.begun(first := new_key())
        assert prepared in client.in_doubt()
        client.write(second := new_key())
        client.end(xid)
        client.prepare(xid)
        client.commit(xid)
        client.rollback(prepared)
        assert {first, second} <= client.harness.committed()

    def test_other_clients_see_the_same(self, harness: Harness, client: Client) -> None:
        other = Client(harness)
        xids = self.several(client)
        assert other.in_doubt() == client.in_doubt() >= set(xids)
        with elsewhere():
            self.roll_back(other, xids)
        assert not client.in_doubt() & set(xids)
        other.rm.close("", RMID)

    @staticmethod
    def several(client: Client) -> list[Xid]:
        """Some prepared branches."""
        return [client.prepared(new_key()) for _ in range(min(7, client.harness.capabilities.max_prepared))]

    @staticmethod
    def scan(client: Client, count: int) -> list[Xid]:
        """A scan in pages of `count`; a shorter one is the last."""
        found = list(client.rm.recover(RMID, TMSTARTRSCAN, count))
        last = len(found) < count
        while not last:
            page = client.rm.recover(RMID, TMNOFLAGS, count)
            assert len(page) <= count
            last = len(page) < count
            found += page
        client.rm.recover(RMID, TMENDRSCAN, count)
        return found

    @staticmethod
    def roll_back(client: Client, xids: list[Xid]) -> None:
        """The end of `several`."""
        for xid in xids:
            client.rollback(xid)
