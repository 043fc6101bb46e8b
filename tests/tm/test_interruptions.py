"""These tests raise KeyboardInterrupt before and after every effect of a completion. Recovery must finish the
transaction, and nothing may be left.

Each test runs the same transaction again and again, interrupted at the first point, the second, … until one run meets
no interruption any more. The points are the verbs of the resource managers and the steps of the log's disk.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tm.interrupting import Run
from tests.tm.log.disk import Disk
from tests.tm.shop import NODE, Shop, outcome_of
from tests.tm.wrapped import DECIDER_VERBS, VERBS, Interrupter, hooked
from tm import RolledBack
from tm.log import FileLog
from tm.log.journal import LEAST_SEGMENT_SIZE
from xa import TMUSEASYNC, Code
from xabridge.testing.reference import NetworkFault

MOST = 200


class EffectRun(Run):
    """It is interrupted at point `at`."""

    def __init__(self, folder: Path, at: int, names: str, *, flags: int, decider: bool = False) -> None:
        super().__init__(folder, names, decider=decider, flags=flags)
        self.interrupter = Interrupter()
        self.interrupter.at = at
        for name in self.shop.stores:
            self.shop.wrap[name] = hooked(self.interrupter.hit, VERBS + DECIDER_VERBS if name == "d" else VERBS)
        self.disk = Disk()
        if not decider:
            self.shop.open(log=self.open_log())
            self.disk.trouble = lambda _, what: self.interrupter.hit("log", what)

    @property
    def where(self) -> list[str]:
        return self.interrupter.where[-1:]

    def open_log(self) -> FileLog:
        return FileLog("", NODE, files=self.disk, segment_size=LEAST_SEGMENT_SIZE)

    def interrupted(self, *, doomed: bool = False) -> bool:
        """Whether the transaction was interrupted."""
        tx = self.shop.tm.begin()
        self.shop.write(tx)
        if doomed:
            tx.set_rollback_only()
        self.interrupter.armed = True
        try:
            tx.commit()
        except KeyboardInterrupt:
            return True
        except RolledBack:
            assert doomed
        finally:
            self.interrupter.armed = False
        return False

    def check(self) -> object:
        """The log can be opened again, too."""
        assert self.shop.tm.current_or_none() is None, self.where
        value = super().check()
        self.shop.tm.close()
        if self.shop.tm.log is not None:
            self.disk.locked = False
            assert not self.open_log().decisions()
        return value


@pytest.mark.parametrize("flags", [TMUSEASYNC, 0], ids=["overlapped", "one after another"])
@pytest.mark.parametrize(
    ("names", "decider", "doomed"),
    [("ab", False, False), ("abc", False, False), ("ab", False, True), ("a", False, False), ("ab", True, False),
     ("ab", True, True)],
    ids=["two", "three", "two, rolled back", "one phase", "decider", "decider, rolled back"],
)  # fmt: skip
def test_interrupted_at_every_point(tmp_path: Path, names: str, decider: bool, doomed: bool, flags: int) -> None:
    came_to = set()
    for at in range(1, MOST):
        run = EffectRun(tmp_path / str(at), at, names, flags=flags, decider=decider)
        interrupted = run.interrupted(doomed=doomed)
        came_to.add(run.check())
        if not interrupted:
            assert at > 4 * len(names)
            break
    else:
        pytest.fail(f"{MOST} points and no end")
    assert len(came_to) == (1 if doomed else 2), "some of them committed, some rolled back"


def test_interrupted_while_it_waits_for_the_next_try(shop: Shop) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    tm = shop.open(sleep=interrupted)
    shop["a"].script.plan("commit", None, NetworkFault.REQUEST_LOST)
    with pytest.raises(KeyboardInterrupt), tm.begin() as tx:
        shop.write(tx)
    assert outcome_of(tx).decided is True
    tm.recover()
    shop.assert_ended(1)


def test_what_is_left_waits_until_its_resource_is_back(shop: Shop) -> None:
    shop["b"].script.plan("rollback", None, NetworkFault.REQUEST_LOST)
    tx = shop.tm.begin()
    shop.write(tx)
    tx.rollback()
    assert [branch.resource for branch in outcome_of(tx).pending] == ["b"]
    assert shop["b"].branches, "in no scan, for it is not prepared"
    assert not shop["b"].in_doubt
    shop["b"].partition()
    report = shop.tm.recover()
    assert not report.clean
    assert "b" in report.unreachable
    shop["b"].heal()
    assert shop.tm.recover().clean
    shop.assert_nothing_left()


def test_what_is_left_and_was_completed_on_its_own_is_noted(shop: Shop) -> None:
    shop["b"].script.plan("prepare", None, NetworkFault.REPLY_LOST)
    shop["b"].script.plan("rollback", None, NetworkFault.REQUEST_LOST)
    tx = shop.tm.begin()
    shop.write(tx)
    with pytest.raises(RolledBack):
        tx.commit()
    shop["b"].complete_heuristically(tx.xid("b"), Code.XA_HEURCOM)
    report = shop.tm.recover()
    assert [finding.action.value for finding in report.findings] == ["completed on its own, noted"]
    assert len(shop.log.heuristics()) == 1
    shop.tm.forget("b", tx.xid("b"))
    shop.assert_nothing_left()
