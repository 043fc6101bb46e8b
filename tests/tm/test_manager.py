"""These tests cover the manager: outages and their back-off, resource managers that break their promises, logs that
fill up or stop, shutdown, and restart.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from typing import Any

import pytest

from tests.tm.log.disk import Disk
from tests.tm.shop import NODE, Shop, outcome_of
from tests.tm.wrapped import Wrapped, hooked
from tm import (
    ConfigurationError,
    GlobalState,
    ManagerUnusable,
    OutcomeUnknown,
    RolledBack,
    TransactionManager,
)
from tm.log import FileLog, LogLocked, LogStopped
from tm.log.journal import LEAST_SEGMENT_SIZE
from tm.recovery import Action
from xa import TMUSEASYNC, Code, ResourceUnavailable, ThreadOfControl, XaError, Xid, entered
from xabridge.testing.reference import NetworkFault


def disk_log(disk: Disk) -> FileLog:
    """A log on this disk, whose process is gone."""
    disk.locked = False
    return FileLog("", NODE, files=disk, segment_size=LEAST_SEGMENT_SIZE)


# --- a resource that can't be reached -------------------------------------------------------------------------------
def test_it_starts_without_a_resource_and_takes_it_when_it_is_back(shop: Shop) -> None:
    shop["b"].partition()
    tm = shop.open()
    assert tm.last_report is not None
    assert set(tm.last_report.unreachable) == {"b"}
    with tm.begin() as tx:
        shop.write(tx, 1, "a")
    with pytest.raises(RolledBack, match=r"b: .* \(next try in 0\.[0-9] s\)"), tm.begin() as tx:
        shop.write(tx, 2)
    assert shop.values() == {"a": 1, "b": None}
    shop["b"].heal()

    with pytest.raises(RolledBack, match="next try in"), tm.begin() as tx:
        shop.write(tx, 3)
    shop.clock.pass_by(0.04)
    with pytest.raises(RolledBack, match=r"next try in 0\.1 s"), tm.begin() as tx:
        shop.write(tx, 3)
    shop.clock.pass_by(0.1)
    with tm.begin() as tx:
        shop.write(tx, 4)
    shop.assert_ended(4)


def test_the_time_until_the_next_try_is_told_once(shop: Shop) -> None:
    """Its connections were broken off while it was open: a thread asks again and again, until it may open it again."""
    wrapper = hooked(lambda _, __: None, ())
    wrapper.break_off = lambda _: None
    shop.wrap["b"] = wrapper
    resource = shop.open().resource("b")
    resource.break_off()
    with entered(ThreadOfControl()):
        resource.lost("the connection was lost")
        for _ in range(3):
            with pytest.raises(ResourceUnavailable, match="the connection was lost") as raised:
                resource.reopen()
            assert str(raised.value).count("next try in") == 1
            resource.failed(raised.value)
        shop.clock.pass_by(10)
        resource.reopen()


def test_after_a_try_that_took_long_it_is_not_tried_for_as_long(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = shop.open().resource("b")

    def silent(_url: str, _rmid: int) -> None:
        shop.clock.pass_by(12)
        raise TimeoutError("nobody answered")

    monkeypatch.setattr(resource.rm, "open", silent)
    resource.lost("the connection was lost")
    with pytest.raises(ResourceUnavailable):
        resource.reopen()
    assert resource._retry_at - shop.clock.now == 12


def test_the_back_off_doubles_up_to_its_bound_and_begins_anew_after_a_success(shop: Shop) -> None:
    shop["b"].partition()
    resource = shop.open().resource("b")
    waits = []
    for _ in range(14):
        shop.clock.pass_by(1000)
        with pytest.raises(ResourceUnavailable):
            resource.reopen()
        waits.append(resource._retry_at - shop.clock.now)

    assert waits[:3] == pytest.approx([0.1, 0.2, 0.4], abs=0.01) or waits[0] < waits[1] < waits[2]
    assert waits[-1] == waits[-2] == 5.0
    shop["b"].heal()
    shop.clock.pass_by(30)
    resource.reopen()
    shop["b"].partition()
    resource.lost("again")
    with pytest.raises(ResourceUnavailable):
        resource.reopen()
    assert resource._retry_at - shop.clock.now == pytest.approx(0.05)
    shop["b"].heal()


def attempt(shop: Shop, names: str = "ab") -> Exception | None:
    """What the application is told of a transaction that has trouble. Both did it, or none, and nothing is left; and
    what it is told is true."""
    told: Exception | None = None
    try:
        with shop.tm.begin() as tx:
            shop.write(tx, 1, names)
    except (RolledBack, OutcomeUnknown, ResourceUnavailable) as error:
        told = error
    shop.clock.pass_by(1)
    for _ in range(2):
        report = shop.tm.recover()
    assert report.clean
    (value,) = {shop[name].data.get("k") for name in names}
    assert told is not None or value == 1
    assert not isinstance(told, RolledBack) or value is None
    shop.assert_nothing_left_at_stores()
    return told


@pytest.mark.parametrize("fate", [NetworkFault.REQUEST_LOST, NetworkFault.REPLY_LOST], ids=lambda fate: fate.name)
@pytest.mark.parametrize("verb", ["open", "start", "work", "end", "prepare", "commit", "rollback"])
@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_connection_lost_at_any_verb(shop: Shop, verb: str, fate: NetworkFault, names: str) -> None:
    if verb == "open":
        shop["a"].script.plan(verb, None, fate)
    shop.open()
    if verb == "rollback":
        shop["a"].script.plan("prepare" if names == "ab" else "commit", Code.XA_RBOTHER)
        shop["b"].script.plan("rollback", None, fate)
    if verb != "open":
        shop["a"].script.plan(verb, None, fate)
    attempt(shop, names)
    shop["a"].script.clear()
    shop["b"].script.clear()
    shop.assert_nothing_left()
    with shop.tm.begin() as tx:
        shop.write(tx, 2)
    assert shop.values() == {"a": 2, "b": 2}


def test_the_unknown_outcome_names_who_is_missing_and_recovery_finishes_it(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "xabridge")
    shop["b"].script.plan("commit", None, NetworkFault.REQUEST_LOST, times=3)
    with pytest.raises(OutcomeUnknown, match="The decision is COMMIT and is durable") as told, shop.tm.begin() as tx:
        shop.write(tx)
        xid = tx.xid("b")
    assert "could not be completed on b" in str(told.value)
    assert outcome_of(told.value).decided is True
    assert shop.clock.slept == [0.01, 0.1]
    report = shop.tm.recover()
    finding, other = report.findings
    assert (finding.branch.xid, finding.action) == (xid, Action.COMMITTED)
    assert (other.branch.resource, other.action) == ("a", Action.NOT_THERE)
    assert report.ended == [tx.gtrid]
    assert f"xid {xid}" in caplog.text
    shop.assert_ended(1)


# --- resource managers that break their promises ----------------------------------------------------------------
class Broken(Exception):
    """Not an XaError."""


VERBS = ("start", "session", "end", "prepare", "commit", "rollback", "complete")
ANSWERS = [(verb, answer) for verb in VERBS[2:6] for answer in (None, 0, "XA_OK", True)]


@pytest.mark.parametrize("flags", [0, TMUSEASYNC], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize(
    ("verb", "wrong"), [*((verb, when) for verb in VERBS for when in ("before", "after")), *ANSWERS], ids=repr
)
def test_an_exception_that_is_no_xa_error_and_an_answer_that_is_no_code_are_no_yes(
    shop: Shop, caplog: pytest.LogCaptureFixture, verb: str, wrong: object, flags: int
) -> None:
    """It is taken for a lost connection, and asked again."""
    raises = wrong in ("before", "after")
    asked = 0

    class Wrong(Wrapped):
        def __getattr__(self, name: str) -> Any:
            right = getattr(self.rm, name)
            if name != verb:
                return right

            def call(*arguments: Any) -> Any:
                nonlocal asked
                asked += 1
                if asked > 1:
                    return right(*arguments)
                if wrong == "after":
                    right(*arguments)
                if raises:
                    raise Broken("what is this?")
                return wrong

            return call

    shop.wrap["a"] = Wrong
    shop.flags["a"] = flags
    shop.open()
    if verb == "rollback":
        shop["b"].script.plan("prepare", Code.XA_RBOTHER)
    told = attempt(shop)
    assert asked or (verb == "complete" and flags == 0)
    assert not (asked and raises) or "what is this?" in caplog.text
    assert raises or verb != "commit" or told is None, "it is asked again"


@pytest.mark.parametrize("where", ["open", "recover", "close"])
def test_an_exception_at_start_or_shutdown_keeps_nobody_from_anything(
    shop: Shop, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    def hook(_: str, verb: str) -> None:
        raise Broken(f"{verb} is broken")

    shop.wrap["a"] = hooked(hook, (where,))
    tm = shop.open()
    assert tm.last_report is not None
    if where != "close":
        assert set(tm.last_report.unreachable) == {"a"}
    with tm.begin() as tx:
        shop.write(tx, 1, "b")
    tm.close()
    assert f"{where} is broken" in caplog.text
    disk = FileLog(shop.folder / "log", NODE)
    disk.close()


@pytest.mark.parametrize("branches", [0, 1, 2, 3, 4])
def test_a_scan_is_read_to_its_end_and_closed(shop: Shop, monkeypatch: pytest.MonkeyPatch, branches: int) -> None:
    monkeypatch.setattr("tm.recovery.blocking.PAGE", 2)
    for number in range(branches):
        shop.in_doubt("a", key=f"k{number}")
    assert len(shop["a"].in_doubt) == branches
    assert len(shop.tm.recover().ended) == branches
    shop.assert_nothing_left()
    with entered(shop.tm._recovery._control), pytest.raises(XaError, match="no scan is open"):
        shop.clients["a"].recover(shop.tm.resource("a").rmid)


def test_a_scan_that_never_ends_is_ended(shop: Shop) -> None:
    foreign = [Xid(4711, str(number).encode()) for number in range(1000)]

    class Endless(Wrapped):
        def recover(self, *_: Any) -> Any:
            return foreign

    shop.wrap["a"] = Endless
    assert shop.open().recover().clean


@pytest.mark.parametrize("room", [0, 3, 4])
def test_branches_overlap_as_far_as_there_is_room(shop: Shop, room: int) -> None:
    """Where no more may be outstanding, what is outstanding is collected, and the next ones overlap again."""
    most: list[int] = []

    class Counting(Wrapped):
        def commit(self, xid: Any, rmid: int, flags: int = 0) -> Any:
            answer = self.rm.commit(xid, rmid, flags)
            most.append(self.rm.outstanding)
            return answer

    shop["b"].room = room
    with shop.tm.begin() as tx:
        shop.write(tx, key="votes")
    gtrids = [shop.in_doubt("b", key=f"k{number}").gtrid for number in range(10)]
    shop.wrap["b"] = Counting
    tm = shop.restart()
    assert tm.last_report is not None
    assert set(tm.last_report.ended) == set(gtrids)
    assert tm.recover().clean
    assert most == [number % room + 1 if room else 0 for number in range(10)]
    assert len(shop["b"].data) == 11
    shop.assert_nothing_left()


@pytest.mark.parametrize("code", [Code.XAER_RMERR, Code.XAER_INVAL, Code.XA_RETRY])
def test_a_resource_that_can_not_be_opened_again_has_rolled_nothing_back(shop: Shop, code: Code) -> None:
    """Its connection is lost over the commit, and then it does not let us in: nothing is known of the branch."""
    tm = shop.tm
    shop["b"].script.plan("commit", None, NetworkFault.REQUEST_LOST)
    shop["b"].script.plan("open", code, times=100)
    with pytest.raises(OutcomeUnknown) as told, tm.begin() as tx:
        shop.write(tx)
    assert outcome_of(told.value).decided
    assert not outcome_of(told.value).heuristics
    shop["b"].script.clear()
    shop.clock.pass_by(60)
    report = tm.recover()
    assert report.clean
    assert report.ended == [tx.gtrid]
    shop.assert_ended(1)


# --- the log --------------------------------------------------------------------------------------------------------
def test_a_full_log_rolls_back_and_can_be_used_when_there_is_room(shop: Shop) -> None:
    disk = Disk()
    tm = shop.open(log=disk_log(disk))
    disk.capacity = 0
    shop["a"].script.plan(
        "commit", None, NetworkFault.REQUEST_LOST, times=1000
    )  # so that decisions stay, and need room
    refused, told = 0, []
    for number in range(100):
        try:
            with tm.begin() as tx:
                shop.write(tx, key=f"{number}")
        except OutcomeUnknown:
            continue
        except RolledBack as error:
            told.append(str(error))
            refused += 1
            if refused == 3:
                break

    assert refused == 3
    assert all("no space" in message for message in told)
    assert tx.status is GlobalState.ROLLED_BACK
    disk.capacity = 1 << 30
    shop["a"].script.clear()
    shop.clock.pass_by(1)
    assert tm.recover().clean
    assert shop["a"].data == shop["b"].data
    with tm.begin() as tx:
        shop.write(tx)
    shop.assert_ended(1)


@pytest.mark.parametrize("moment", ["write", "written", "force", "forced"])
def test_a_log_that_stops_leaves_the_manager_unusable_and_a_restart_recovers(shop: Shop, moment: str) -> None:
    """Also another transaction that is under way then."""
    disk = Disk()
    tm = shop.open(log=disk_log(disk))

    def fail(_: int, what: str) -> None:
        if what == moment:
            raise OSError(5, "Input/output error")

    under_way = tm.begin()
    shop.write(under_way, key="j")
    tm.suspend()
    tx = tm.begin()
    shop.write(tx)
    disk.trouble = fail
    with pytest.raises(OutcomeUnknown, match="Input/output error") as told:
        tx.commit()
    disk.trouble = None
    assert outcome_of(told.value).decided is None
    with pytest.raises(ManagerUnusable, match="restart this process"):
        tm.begin()
    tm.resume(under_way)
    with pytest.raises(OutcomeUnknown):
        under_way.commit()
    with pytest.raises(LogStopped):
        tm.recover()
    assert len(shop["a"].in_doubt) == len(shop["b"].in_doubt) == 2, "nobody presumes anything meanwhile"
    shop.kill()
    shop.open(log=disk_log(disk))
    for key in "jk":
        assert len(set(shop.values(key).values())) == 1
    shop.assert_nothing_left()
    with shop.tm.begin() as tx:
        shop.write(tx, 2)
    assert shop.values() == {"a": 2, "b": 2}


def test_the_log_is_let_go_when_construction_fails(shop: Shop) -> None:
    class Interrupting(Wrapped):
        def recover(self, *_: Any) -> Any:
            raise KeyboardInterrupt

    shop.wrap["a"] = Interrupting
    with pytest.raises(KeyboardInterrupt):
        shop.open(log=shop.log_url)
    del shop.wrap["a"]
    shop.open(log=shop.log_url)


def test_a_log_that_is_in_use_and_one_of_another_node_are_refused(shop: Shop) -> None:
    shop.open(log=shop.log_url)
    with pytest.raises(LogLocked):
        TransactionManager(NODE, shop.log_url, {"a": shop.config("a")}, background=False)
    log = FileLog(shop.folder / "log2", "orders-2")
    with pytest.raises(ConfigurationError, match="that of node orders-2, not of orders-1"):
        TransactionManager(NODE, log, {"a": shop.config("a")}, background=False)
    log.close()


# --- restart --------------------------------------------------------------------------------------------------------
def test_another_node_leaves_the_branches_of_the_first_alone(shop: Shop) -> None:
    tx = shop.in_doubt("b")
    shop.kill()
    other = shop.open(node="orders-2", log=FileLog(shop.folder / "log2", "orders-2"))
    report = other.recover()
    assert [(f.branch.xid, f.action) for f in report.findings] == [(tx.xid("b"), Action.LEFT_ALONE)]
    assert "orders-1" in report.findings[0].why
    shop.kill()
    shop.open(log=FileLog(shop.folder / "log3", NODE))
    assert shop["b"].in_doubt, "the same node with an empty disk knows nothing"
    shop.kill()
    shop.open()
    shop.assert_ended(1)


def test_recovery_runs_by_itself_when_something_is_left(shop: Shop) -> None:
    done = threading.Event()

    def told(when: str, verb: str) -> None:
        if (when, verb) == ("after", "commit"):
            done.set()

    shop.wrap["b"] = hooked(told)
    tm = shop.open(background=True)
    shop.in_doubt("b")
    assert done.wait(30)
    tm.close()
    assert shop.values() == {"a": 1, "b": 1}


def test_the_recovery_thread_survives_what_it_does_not_expect(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tm = shop.open(background=True, recovery_interval_s=0.01)
    passes = threading.Semaphore(0)
    genuine = tm._recovery.run_once

    def run_once() -> Any:
        passes.release()
        raise Broken("unheard of")

    monkeypatch.setattr(tm._recovery, "run_once", run_once)
    for _ in range(3):
        assert passes.acquire(timeout=30)
    monkeypatch.setattr(tm._recovery, "run_once", genuine)
    tm.close()
    assert "unheard of" in caplog.text


# --- contexts and threads -----------------------------------------------------------------------------------------
def test_two_managers_do_not_share_their_current_transactions(shop: Shop, tmp_path: Any) -> None:
    (tmp_path / "other").mkdir()
    other = Shop(tmp_path / "other", "c")
    other.open(node="orders-2", log=FileLog(tmp_path / "other" / "log", "orders-2"))
    with shop.tm.begin() as tx:
        shop.write(tx)
        assert other.tm.current_or_none() is None
    assert shop.values() == {"a": 1, "b": 1}
    other.close()


# --- shutdown -------------------------------------------------------------------------------------------------------
def test_close_waits_for_what_is_under_way(shop: Shop) -> None:
    tx = shop.tm.begin()
    shop.write(tx)
    closing = threading.Thread(target=shop.tm.close)
    closing.start()
    while not shop.tm._closed:
        closing.join(0.001)
    with pytest.raises(ManagerUnusable, match="is closed"):
        contextvars.Context().run(shop.tm.begin)
    tx.commit()
    closing.join()
    shop.tm.close()
    with pytest.raises(ManagerUnusable, match="is closed"):
        shop.tm.begin()
    assert shop.values() == {"a": 1, "b": 1}
    shop.assert_nothing_left_at_stores()


def test_close_gives_up_in_the_end_and_what_is_late_is_not_committed(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    tm = shop.tm
    with pytest.raises((RolledBack, OutcomeUnknown)), tm.begin() as tx:
        shop.write(tx)
        tm.close(timeout_s=0.02)
        assert "still active at shutdown" in caplog.text
    shop.kill()
    shop.open()
    assert len(set(shop.values().values())) == 1
    assert not shop["a"].in_doubt
    assert not shop["b"].in_doubt


def test_close_ends_its_threads_and_lets_everything_go(shop: Shop) -> None:
    before = set(threading.enumerate())
    with shop.open(background=True, log=shop.log_url) as tm, tm.begin() as tx:
        shop.write(tx)
        tx.commit(wait="logged")
    assert set(threading.enumerate()) <= before
    FileLog(shop.folder / "log", NODE).close()
