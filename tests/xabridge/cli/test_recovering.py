"""These tests cover recover run and recover end: one pass, its report, and what it leaves to others; which decisions an
operator ends, what is refused, what is said, and what is finished first.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.xabridge.cli.field import INCARNATION, NAME, NODE, OTHER_LOG, OTHERS, Field, Xabridge, xid_of
from tests.xabridge.cli.served import DECIDER
from tm.log import Branch, Decision, read_log
from tm.log.decider_record import encode_branches
from tm.recovery.report import Action, Finding, Report
from xa import FORMAT_ID, TMSUCCESS, Code, Gtrid, Owner, Xid
from xa.state_tables import BranchState
from xabridge.operations.recovery_pass import report_lines
from xabridge.testing.reference import NetworkFault, ReferenceDecider


def fill(field: Field) -> None:
    """Decided, undecided, another node's."""
    decided = field.gtrid(8231)
    field.decide(decided, "broker", "shop")
    field.prepare("broker", decided, "a")
    field.prepare("shop", decided, "b")
    field.prepare("shop", field.gtrid(114, node="orders-2", log_id=OTHER_LOG, incarnation=OTHERS), "c")
    field.prepare("broker", field.gtrid(9000), "d")


REPORT = """\
orders-2·c07d11·114  left alone: belongs to node orders-2, log 7f3a000000000001
orders-1·3fa91c·8231 committed on broker, shop
orders-1·3fa91c·9000 rolled back on broker
                     one of usually two branches is left; the other may be
                     committed by hand, or not prepared
"""
DRY = """\
orders-1·3fa91c·8231 would be committed on broker and shop
orders-1·3fa91c·9000 would be rolled back on broker, unless it is decided before
                     one of usually two branches is left; the other may be
                     committed by hand, or not prepared
orders-2·c07d11·114  would be left alone: another node's: its log is not here
                     (node orders-2, log 7f3a000000000001)
"""


def test_a_pass(field: Field, xabridge: Xabridge) -> None:
    """A dry run changes nothing, and no thread is left."""
    threads = set(threading.enumerate())  # those that other tests have left
    fill(field)
    before = field.log_files()
    said = xabridge("recover", "run", "--dry-run")
    assert (said.code, said.out) == (3, DRY)
    assert field.log_files() == before
    assert not field.stores["broker"].data

    said = xabridge("recover", "run")
    assert (said.code, said.out) == (0, REPORT)
    assert field.stores["broker"].data == {"a": True}
    assert field.stores["shop"].data == {"b": True}
    assert not read_log(field.log_folder).decisions
    said = xabridge("recover", "run")
    assert said.out == "orders-2·c07d11·114  left alone: belongs to node orders-2, log 7f3a000000000001\n"
    left = [thread.name for thread in threading.enumerate() if thread not in threads]
    assert not [name for name in left if name.startswith("xabridge")], left


def test_nothing_to_do_and_nothing_to_go_by(field: Field, xabridge: Xabridge) -> None:
    said = xabridge("recover", "run")
    assert (said.code, said.out) == (0, "nothing in doubt\n")
    assert xabridge("recover", "run", "--dry-run").out == "nothing found in doubt\n"
    field.config.write_text(f'node = "n"\n[resources]\nshop = "{field.url("shop")}"\n')
    said = xabridge("recover", "run")
    assert said.code == 2
    assert "log: there is no log, and no resource decides" in said.err


def test_a_dry_run_names_what_is_not_there_any_more(field: Field, xabridge: Xabridge) -> None:
    """As the pass does, also where nothing else is in doubt."""
    for sequence, prepared in ((1, ("broker",)), (2, ())):
        gtrid = field.gtrid(sequence)
        field.decide(gtrid, "broker", "shop")
        for name in prepared:
            field.prepare(name, gtrid)
    gone = "not there any more on {}: committed before, or completed by hand"
    dry = xabridge("recover", "run", "--dry-run")
    assert dry.code == 3
    assert f"orders-1·3fa91c·1 would be committed on broker {gone.format('shop')}" in dry.words
    assert gone.format("broker") in dry.words.partition("orders-1·3fa91c·2")[2]
    missing = json.loads(xabridge("recover", "run", "--dry-run", "--json").out)["missing"]
    assert [(one["resource"], one["outcome"]) for one in missing] == [
        ("shop", "unknown"), ("broker", "unknown"), ("shop", "unknown"),
    ]  # fmt: skip

    said = xabridge("recover", "run")
    assert said.code == 0
    assert f"orders-1·3fa91c·1 committed on broker {gone.format('shop')}" in said.words
    assert gone.format("broker, shop") in said.words.partition("orders-1·3fa91c·2")[2]


def test_what_only_another_node_has_in_doubt_is_shown_and_is_clean(field: Field, xabridge: Xabridge) -> None:
    """For every command alike, unless that node is named."""
    field.open_log().close()
    field.prepare("shop", field.gtrid(114, node="orders-2", log_id=OTHER_LOG, incarnation=OTHERS))
    name = "orders-2:c07d11:114"
    commands = ("list",), ("show", name), ("run", "--dry-run"), ("run",)
    said = {command: xabridge("recover", *command) for command in commands}
    assert {command: one.code for command, one in said.items()} == dict.fromkeys(commands, 0)
    assert all("orders-2" in one.out for one in said.values())
    assert xabridge("recover", "list", "--node", "orders-2").code == 3
    assert xabridge("recover", "list", "--node", NODE).code == 0


def test_what_can_not_be_reached_is_said_and_the_rest_is_done(field: Field, xabridge: Xabridge) -> None:
    fill(field)
    field.configure("broker", urls=[("shop", field.url("shop", socket="nowhere"))])
    said = xabridge("recover", "run")
    assert said.code == 4
    assert "orders-1·3fa91c·8231 committed on broker\n" in said.out
    assert "shop could not be reached" in said.out
    assert len(read_log(field.log_folder).decisions) == 1
    field.configure("broker")
    said = xabridge("recover", "run")
    assert said.code == 4
    assert "shop could not be reached: not configured any more" in said.out
    field.configure("broker", "shop")
    assert xabridge("recover", "run").code == 0
    assert not read_log(field.log_folder).decisions


def test_a_resource_manager_with_another_name_now(field: Field, xabridge: Xabridge) -> None:
    """Its branches are found by their xids: what was committed there is not told as not configured."""
    for sequence in range(1, 301):
        gtrid = field.gtrid(sequence)
        field.prepare("shop", gtrid)
    log = field.open_log()
    for sequence in range(1, 301):
        gtrid = field.gtrid(sequence)
        log.decide(Decision(gtrid, (Branch("shop", xid_of(gtrid, "shop")),)))

    log.close()
    field.configure(urls=[("laden", field.url("shop"))])
    said = xabridge("recover", "run")
    assert said.code == 0
    assert "configured" not in said.out
    assert "could not be reached" not in said.out
    assert len(field.stores["shop"].data) == 300
    assert not read_log(field.log_folder).decisions
    assert xabridge("recover", "run").out == "nothing in doubt\n"


def test_what_stays_in_doubt(field: Field, xabridge: Xabridge) -> None:
    fill(field)
    field.stores["shop"].script.plan("commit", Code.XA_RETRY)
    said = xabridge("recover", "run")
    assert said.code == 3
    assert "still in doubt on shop: decided to commit; " in said.out
    field.stores["shop"].script.plan("commit", fate=NetworkFault.REPLY_LOST)
    assert xabridge("recover", "run").code == 3
    assert xabridge("recover", "run").code == 0
    assert field.stores["shop"].data == {"b": True}


def test_json(field: Field, xabridge: Xabridge) -> None:
    fill(field)
    value = json.loads(xabridge("recover", "run", "--json").out)
    actions = {(finding["transaction"], finding["resource"]): finding["action"] for finding in value["findings"]}
    assert actions == {
        ("orders-1·3fa91c·8231", "broker"): "committed",
        ("orders-1·3fa91c·8231", "shop"): "committed",
        ("orders-1·3fa91c·9000", "broker"): "rolled-back",
        ("orders-2·c07d11·114", "shop"): "left-alone",
    }
    assert value["clean"] is True


# --- where a resource decides -----------------------------------------------------------------------------------------
@pytest.fixture
def deciding(field: Field) -> Iterator[Field]:
    """A node without a log, whose decisions are in memory."""
    field.configure("shop", urls=[("ledger", "memory-test://ledger")])
    text = field.config.read_text().replace('ledger = "memory-test://ledger"', LEDGER)
    field.config.write_text("\n".join(line for line in text.splitlines() if not line.startswith("log")))
    yield field
    DECIDER._decisions.clear()
    DECIDER._order = None
    DECIDER.leases.clear()


LEDGER = 'ledger = { url = "memory-test://ledger", mode = "decider" }'


def its_gtrid(sequence: int) -> bytes:
    return Gtrid(NODE, DECIDER.decider_id, INCARNATION, sequence).encode()


def decide(gtrid: bytes) -> None:
    rm = ReferenceDecider(DECIDER)
    rm.open(DECIDER.url, 1)
    xid = Xid(FORMAT_ID, gtrid, b"ledger")
    rm.start(xid, 1)
    rm.end(xid, 1, TMSUCCESS)
    rm.decide(xid, 1, encode_branches([Branch("shop", xid_of(gtrid, "shop"))]))


def without_the_shop(deciding: Field, *more: str) -> None:
    """It is not configured any more."""
    lines = [line for line in deciding.config.read_text().splitlines() if not line.startswith("shop")]
    deciding.config.write_text("\n".join((*lines, *more)))


AT_WORK = Owner(NODE, INCARNATION, "")


def test_what_another_process_of_the_node_is_at_work_with_is_left_to_it(deciding: Field, xabridge: Xabridge) -> None:
    """It may be about to decide: asking the decider would roll it back."""
    DECIDER.hold(AT_WORK, 300, 0, 99)
    deciding.prepare("shop", its_gtrid(1))
    for _ in range(2):
        said = xabridge("recover", "run", "--dry-run")
        assert said.out.startswith("orders-1·3fa91c·1    would be left alone: ledger ")
        said = xabridge("recover", "run")
        assert said.words == (
            "orders-1·3fa91c·1 left alone: another process of this node is working on it, as ledger says"
        )
        assert not DECIDER.tombstones
        if its_gtrid(1) not in DECIDER.decided:
            decide(its_gtrid(1))

    assert its_gtrid(1) in DECIDER.decided, "whoever is at work ends it"
    DECIDER.hold(AT_WORK, 0, 0, 99)
    assert xabridge("recover", "run").out == "orders-1·3fa91c·1    committed on shop\n"
    assert not DECIDER.decided


@pytest.mark.parametrize("act", ["forget", "commit", "rollback", "end"])
def test_by_hand_what_another_process_is_at_work_with_is_left_to_it(
    deciding: Field, xabridge: Xabridge, act: str
) -> None:
    """That process may be about to decide, or to complete it, and has to hear first how the branch was completed. With
    --heuristic it is done, and can't be decided otherwise any more; a decision is not ended."""
    DECIDER.hold(AT_WORK, 300, 0, 99)
    xid = deciding.prepare("shop", its_gtrid(1), "row")
    if act == "forget":
        deciding.stores["shop"].complete_heuristically(xid, Code.XA_HEURRB)
    if act in {"commit", "end"}:
        decide(its_gtrid(1))
    if act == "end":
        without_the_shop(deciding)
        said = xabridge(*END, "--yes")
        assert said.code == 1
        assert "another process of this node is working on it" in said.words
        assert its_gtrid(1) in DECIDER.decided
        return

    said = xabridge("recover", act, NAME, "--yes")
    assert (said.code, said.out) == (5, "")
    assert "as recovery would" not in said.words
    assert "another process of this node is at work with orders-1·3fa91c·1" in said.words
    assert "--heuristic" in said.words
    assert len(deciding.stores["shop"].branches) == 1
    assert not DECIDER.tombstones
    value = json.loads(xabridge("recover", act, NAME, "--yes", "--json").out)
    assert [step["consent"] for step in value["plan"]] == ["at_work"]
    assert xabridge("recover", act, NAME, "--yes", "--heuristic").code == 0
    assert not deciding.stores["shop"].branches
    assert deciding.stores["shop"].data == ({"row": True} if act == "commit" else {})
    assert DECIDER.tombstones == (set() if act == "commit" else {its_gtrid(1)})


@pytest.mark.usefixtures("deciding")
def test_another_nodes_decision_is_not_shown_nor_touched(xabridge: Xabridge) -> None:
    theirs = Gtrid("orders-2", DECIDER.decider_id, INCARNATION, 1).encode()
    decide(theirs)
    for command in (("list",), ("run", "--dry-run"), ("run",)):
        said = xabridge("recover", *command)
        assert said.code == 0, said
        assert "orders-2" not in said.out
    assert theirs in DECIDER.decided


def test_whose_lease_has_run_out_is_settled(deciding: Field, xabridge: Xabridge) -> None:
    DECIDER.hold(AT_WORK, 0, 0, 99)
    deciding.prepare("shop", its_gtrid(1))
    assert xabridge("recover", "list", "--json").code == 3
    assert not DECIDER.tombstones, "looking settles nothing"
    said = xabridge("recover", "run")
    assert said.out == "orders-1·3fa91c·1    rolled back on shop\n"
    assert DECIDER.tombstones == {its_gtrid(1)}
    DECIDER.hold(AT_WORK, 0, 0, 99)
    deciding.prepare("shop", its_gtrid(2), "row")
    assert xabridge("recover", "rollback", "orders-1:3fa91c:2", "--yes").code == 0, "by hand as well"
    assert not deciding.stores["shop"].branches


def test_by_hand_the_decider_has_the_last_word(deciding: Field, xabridge: Xabridge) -> None:
    DECIDER.hold(AT_WORK, 0, 0, 99)
    deciding.prepare("shop", its_gtrid(1), "row")
    said = xabridge("recover", "rollback", "orders-1:3fa91c:1", "--dry-run")
    assert "decision none: ledger has none" in said.err
    assert not DECIDER.tombstones
    assert xabridge("recover", "rollback", "orders-1:3fa91c:1", "--yes").code == 0
    assert DECIDER.tombstones == {its_gtrid(1)}
    deciding.prepare("shop", its_gtrid(2), "row")
    decide(its_gtrid(2))
    assert xabridge("recover", "rollback", "orders-1:3fa91c:2", "--yes").code == 5
    assert xabridge("recover", "commit", "orders-1:3fa91c:2", "--yes").code == 0
    assert deciding.stores["shop"].data == {"row": True}


def test_a_decider_that_can_not_be_reached(deciding: Field, xabridge: Xabridge) -> None:
    deciding.prepare("shop", its_gtrid(1))
    DECIDER.partition()
    try:
        said = xabridge("recover", "list")
        assert said.code == 4
        assert "prepared     unknown   shop" in said.out
        assert "ledger, where it may live, could not be reached" in said.words
        assert xabridge("recover", "run").code == 4
        assert xabridge("recover", "rollback", "orders-1:3fa91c:1", "--yes").code == 5
    finally:
        DECIDER.heal()


# --- recover end -----------------------------------------------------------------------------------------------------
END = ("recover", "end", NAME, "--gone", "shop")


def lost(field: Field, *configured: str, gone: tuple[str, ...] = ("shop",)) -> bytes:
    """A transaction that is decided, and prepared on broker; what is gone is not configured any more."""
    gtrid = field.gtrid(1)
    field.decide(gtrid, "broker", *gone)
    field.prepare("broker", gtrid, "order")
    field.configure("broker", *configured)
    return gtrid


def decisions(field: Field) -> list[bytes]:
    return [decision.gtrid for decision in read_log(field.log_folder).decisions]


def test_it_is_ended_for_good(field: Field, xabridge: Xabridge) -> None:
    """What is left elsewhere is committed first."""
    gtrid = lost(field)
    assert xabridge("recover", "run").code == 4
    field.prepare("broker", gtrid, "late order")
    field.prepare("broker", field.gtrid(2), "another")
    said = xabridge(*END, "--yes")
    assert said.code == 0
    assert "orders-1·3fa91c·1    committed on broker\n" in said.out
    assert "orders-1·3fa91c·2    rolled back on broker\n" in said.out
    assert field.stores["broker"].data == {"order": True, "late order": True}
    assert f"orders-1·3fa91c·1 on shop: ended without it (xid {xid_of(gtrid, 'shop')})\n" in said.out
    assert said.out.endswith("orders-1·3fa91c·1: the decision is ended\n")
    assert not decisions(field)
    assert xabridge("recover", "run").out == "nothing in doubt\n"
    assert xabridge(*END, "--yes").code == 1, "there is none any more"


def test_under_another_name_it_is_committed_and_said_so(field: Field, xabridge: Xabridge) -> None:
    gtrid = lost(field)
    field.prepare("shop", gtrid, "row")
    field.configure("broker", urls=[("store", field.url("shop"))])
    said = xabridge(*END, "--yes")
    assert said.code == 0
    assert "commits the branch of shop, which was found on store" in said.words
    assert "orders-1·3fa91c·1    committed on broker, store\n" in said.out
    assert "ended without it" not in said.out
    assert field.stores["shop"].data == {"row": True}
    assert not decisions(field)


def test_gone_is_all_that_the_decision_names_and_nobody_has(field: Field, xabridge: Xabridge) -> None:
    gtrid = lost(field, gone=("shop", "billing"))
    for names, why in (
        ("broker", "broker is configured: recovery commits its branch"),
        ("shop x", "x has no branch in it"),
        ("shop", "it also names billing, not configured any more"),
    ):
        gone = [word for name in names.split() for word in ("--gone", name)]
        said = xabridge("recover", "end", NAME, *gone, "--yes")
        assert (said.code, said.out) == (5, "")
        assert f"nothing was done: {why}" in said.words
        assert decisions(field) == [gtrid]
        assert field.stores["broker"].branches[xid_of(gtrid, "broker")] is BranchState.S3
    assert xabridge("recover", "end", NAME, "--gone", "billing", "--gone", "shop", "--yes").code == 0


def test_what_can_not_be_ended(field: Field, xabridge: Xabridge) -> None:
    field.open_log().close()
    field.prepare("broker", field.gtrid(2))
    said = xabridge("recover", "end", "orders-1:3fa91c:2", "--gone", "shop", "--yes")
    assert said.code == 5
    assert "no decision of it is known here (none)" in said.words
    assert field.stores["broker"].in_doubt

    gtrid = lost(field, "shop")
    said = xabridge(*END, "--yes")
    assert said.code == 5
    assert "every resource that it names is configured: recovery ends it" in said.words
    field.configure("broker", urls=[("analytics", field.url("analytics", socket="nowhere"))])
    said = xabridge(*END, "--yes")
    assert said.code == 5
    assert "analytics could not be reached, and may have a branch of it" in said.words

    field.configure("broker")
    field.stores["broker"].script.plan("commit", Code.XA_RETRY)
    said = xabridge(*END, "--yes")
    assert said.code == 1
    assert "still in doubt on broker" in said.out, "the pass that was made"
    assert "is ended" not in said.out
    assert "can't be ended as long as a branch of it may be left elsewhere" in said.words
    assert decisions(field) == [gtrid]


def test_it_asks_before_it_ends(field: Field, xabridge: Xabridge) -> None:
    gtrid = lost(field)
    said = xabridge(*END, "--dry-run")
    assert (said.code, said.out) == (0, "")
    assert "ends the decision without shop" in said.words
    assert "dry run: nothing was done" in said.err
    assert decisions(field) == [gtrid]
    assert field.stores["broker"].in_doubt
    for typed, code, left in (("no\n", 5, 1), ("yes\n", 0, 0)):
        said = xabridge(*END, typed=typed)
        assert "end orders-1·3fa91c·1 without shop? This can't be undone." in said.err
        assert (said.code, len(decisions(field))) == (code, left)


def test_a_decision_that_has_ended_since_it_was_shown(field: Field, xabridge: Xabridge) -> None:
    gtrid = lost(field)

    def somebody_else() -> None:
        log = field.open_log()
        log.end(gtrid)
        log.close()

    said = xabridge(*END, typed="yes\n", meanwhile=somebody_else)
    assert "has no decision that has not ended" in said.words
    assert said.code == 1
    assert field.stores["broker"].in_doubt, "no pass was made"


def test_an_end_as_json(field: Field, xabridge: Xabridge) -> None:
    gtrid = lost(field)
    value = json.loads(xabridge("recover", "end", NAME, "--gone", "x", "--yes", "--json").out)
    assert (value["ended"], value["report"], value["done"]) == (False, None, [])
    assert value["trouble"].startswith("nothing was done: x has no branch")
    value = json.loads(xabridge("recover", "run", "--json").out)
    assert value["not_configured"] == {gtrid.hex(): ["shop"]}
    value = json.loads(xabridge(*END, "--yes", "--json").out)
    assert [(step["resource"], step["xid"]) for step in value["plan"]] == [("shop", str(xid_of(gtrid, "shop")))]
    assert [(done["resource"], done["ok"]) for done in value["done"]] == [("shop", True)]
    assert value["report"]["ended"] == [gtrid.hex()]
    assert (value["act"], value["ended"], value["trouble"]) == ("end", True, None)


def test_the_command_is_named_where_it_may_be_needed(field: Field, xabridge: Xabridge) -> None:
    lost(field)
    for command in (["show", NAME], ["run", "--dry-run"], ["run"]):
        said = xabridge("recover", *command)
        assert "xabridge recover end orders-1·3fa91c·1 --gone shop" in said.words
        assert "again, under any name" in said.words, "the better way comes first"


def test_an_end_that_the_disk_does_not_take_is_not_told(
    field: Field, xabridge: Xabridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log takes an end without a force: what it can't write when it is closed is lost, and the decision is back."""
    gtrid = lost(field)

    def broken_when_committed(call: Callable[..., int]) -> Callable[..., int]:
        def write(*arguments: Any) -> int:
            if not field.stores["broker"].branches:
                raise OSError(errno.EIO, "a broken disk")
            return call(*arguments)

        return write

    with monkeypatch.context() as patched:
        for name in ("pwrite", "pwritev"):
            patched.setattr(os, name, broken_when_committed(getattr(os, name)))
        said = xabridge(*END, "--yes")
    assert said.code == 1
    assert "could not be written: try again" in said.words
    assert "is ended" not in said.out
    assert decisions(field) == [gtrid]
    assert xabridge(*END, "--yes").code == 0


def test_a_decision_in_a_resource_that_decides(deciding: Field, xabridge: Xabridge) -> None:
    """An end that the decider did not hear of is not told."""
    decide(its_gtrid(1))
    without_the_shop(deciding, f'broker = "{deciding.url("broker")}"')
    DECIDER.hold(Owner(NODE, b"at work!", ""), 300)
    deciding.prepare("broker", Gtrid(NODE, DECIDER.decider_id, b"at work!", 2).encode())
    DECIDER.script.plan("end_decisions", Code.XAER_RMERR)
    said = xabridge(*END, "--yes")
    assert said.code == 1
    assert "could not be written: try again" in said.words
    assert "is ended" not in said.out
    said = xabridge(*END, "--yes")
    assert said.code == 0, said
    assert "left alone: another process of this node" in said.out
    assert not DECIDER.tombstones, "the pass spares what others have under way"
    assert not DECIDER._decisions


def test_each_reason_is_said_of_its_own_resources() -> None:
    """One resource can tell what became of its branch, another one can't."""
    xid = Xid(FORMAT_ID, Gtrid("orders-1", bytes(8), bytes(8), 1).encode(), b"x")
    report = Report(
        [
            Finding(Branch("broker", xid), Action.NOT_THERE, "committed before, or completed by hand"),
            Finding(Branch("shop", xid), Action.NOT_THERE, "it was committed, as decided"),
            Finding(Branch("ledger", xid), Action.NOT_THERE, "it was committed, as decided"),
        ]
    )
    said = " ".join(" ".join(report_lines(report)).split())
    assert "not there any more on broker: committed before" in said
    assert "not there any more on shop, ledger: it was committed" in said
