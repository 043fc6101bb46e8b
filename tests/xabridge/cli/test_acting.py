"""These tests run recover commit, rollback and forget by hand, and check what they refuse, explain, do, and note in the
log.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.xabridge.cli.field import NODE, OTHER_LOG, xid_of
from tm.log import Branch, FileLog, Heuristic, read_log
from xa import Code, Xid
from xa.tables import BranchState
from xabridge.testing.reference import Fate, ReferenceResource

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xabridge.cli.field import Field, Said

    Xabridge = Callable[..., Said]

NAME = "orders-1:3fa91c:1"


def decided(field: Field) -> bytes:
    """A transaction that is decided, and prepared on both."""
    gtrid = field.gtrid(1)
    field.decide(gtrid, "broker", "shop")
    field.prepare("broker", gtrid, "order")
    field.prepare("shop", gtrid, "row")
    return gtrid


def undecided(field: Field) -> bytes:
    """One that is not."""
    field.open_log().close()
    gtrid = field.gtrid(1)
    field.prepare("broker", gtrid, "order")
    field.prepare("shop", gtrid, "row")
    return gtrid


def data(field: Field) -> set[str]:
    """Every committed key."""
    return {key for store in field.stores.values() for key in store.data}


def branches(field: Field) -> int:
    """How many there still are."""
    return sum(len(store.branches) for store in field.stores.values())


# --- with the decision ------------------------------------------------------------------------------------------------
def test_commit_of_what_is_decided(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    said = xabridge("recover", "commit", NAME, "--yes")
    assert said.code == 0
    assert said.out == "orders-1·3fa91c·1 on broker: committed\norders-1·3fa91c·1 on shop: committed\n"
    assert "decision commit: the log has it" in said.err
    assert data(field) == {"order", "row"}
    assert not read_log(field.log_folder).heuristics
    assert xabridge("recover", "run").code == 0
    assert not read_log(field.log_folder).decisions


def test_rollback_of_what_is_not_decided(field: Field, xabridge: Xabridge) -> None:
    undecided(field)
    assert xabridge("recover", "rollback", NAME, "--yes").code == 0
    assert not data(field)
    assert not branches(field)
    assert not read_log(field.log_folder).heuristics


def test_one_branch_only(field: Field, xabridge: Xabridge) -> None:
    gtrid = undecided(field)
    assert xabridge("recover", "rollback", NAME, "--on", "shop", "--yes").code == 0
    assert list(field.stores["broker"].branches.values()) == [BranchState.S3]
    assert xabridge("recover", "rollback", str(xid_of(gtrid, "broker")), "--yes").code == 0
    assert not branches(field)


# --- against the decision ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("act", ["commit", "rollback"])
def test_what_would_split_is_refused(field: Field, xabridge: Xabridge, act: str) -> None:
    (undecided if act == "commit" else decided)(field)
    said = xabridge("recover", act, NAME, "--on", "shop", "--yes")
    assert (said.code, said.out) == (5, "")
    assert "this splits the transaction" in said.err
    assert "this may split a transaction: to do it anyway, pass --heuristic" in " ".join(said.err.split())
    assert branches(field) == 2
    assert not data(field)


@pytest.mark.parametrize("act", ["commit", "rollback"])
def test_the_same_on_every_branch_splits_nothing(field: Field, xabridge: Xabridge, act: str) -> None:
    """It is refused all the same, since it goes against the log; but not for what it does not do."""
    (undecided if act == "commit" else decided)(field)
    said = xabridge("recover", act, NAME, "--yes")
    told = " ".join(said.err.split())
    assert (said.code, said.out) == (5, "")
    assert "nothing is split" in told
    assert "this goes against the log: to do it anyway, pass --heuristic" in told
    assert "this splits" not in told
    assert xabridge("recover", act, NAME, "--heuristic", "--yes").code == 0
    assert data(field) == ({"order", "row"} if act == "commit" else set())


def test_every_branch_that_shows_is_not_every_branch(field: Field, xabridge: Xabridge) -> None:
    """Where somebody could not be asked, or has committed already, the rest is a part."""
    gtrid = decided(field)
    rm = ReferenceResource(field.stores["broker"])
    rm.open(field.stores["broker"].url, 1)
    rm.commit(xid_of(gtrid, "broker"), 1)
    said = xabridge("recover", "rollback", NAME, "--yes")
    assert "this splits the transaction" in " ".join(said.err.split())
    field.prepare("shop", field.gtrid(2))
    field.configure("broker", "shop", urls=[("analytics", field.url("analytics", socket="nowhere"))])
    said = xabridge("recover", "commit", NAME.removesuffix("1") + "2", "--yes")
    assert "this splits the transaction" in " ".join(said.err.split())


def test_a_heuristic_rollback_is_noted(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    said = xabridge("recover", "rollback", NAME, "--on", "shop", "--heuristic", "--yes")
    assert said.code == 0
    assert "orders-1·3fa91c·1 on shop: rolled back, and noted as a heuristic outcome" in said.out
    (note,) = read_log(field.log_folder).heuristics
    assert (note.branch.resource, note.code) == ("shop", Code.XA_HEURRB)
    assert xabridge("recover", "run").code == 0
    assert data(field) == {"order"}, "split, as was asked for"
    assert "heurrb       ended     shop" in xabridge("recover", "list").out
    said = xabridge("recover", "forget", NAME, "--yes")
    assert said.code == 0
    assert "compare first" in " ".join(said.err.split())
    assert not read_log(field.log_folder).heuristics
    assert xabridge("recover", "list").code == 0


def test_a_heuristic_commit_is_noted(field: Field, xabridge: Xabridge) -> None:
    undecided(field)
    assert xabridge("recover", "commit", NAME, "--heuristic", "--yes").code == 0
    assert data(field) == {"order", "row"}
    assert {note.code for note in read_log(field.log_folder).heuristics} == {Code.XA_HEURCOM}


def test_when_it_is_not_done_the_note_goes(field: Field, xabridge: Xabridge) -> None:
    undecided(field)
    field.stores["shop"].script.plan("commit", Code.XA_RETRY)
    said = xabridge("recover", "commit", NAME, "--on", "shop", "--heuristic", "--yes")
    assert said.code == 1
    assert "on shop: not done: " in said.out
    assert not read_log(field.log_folder).heuristics
    assert not data(field)


@pytest.mark.parametrize("fate", [Fate.REQUEST_LOST, Fate.REPLY_LOST])
def test_when_nobody_knows_the_note_stays(field: Field, xabridge: Xabridge, fate: Fate) -> None:
    decided(field)
    field.stores["shop"].script.plan("rollback", fate=fate)
    said = xabridge("recover", "rollback", NAME, "--on", "shop", "--heuristic", "--yes")
    assert said.code == 1
    assert "on shop: unknown whether it was done: " in said.out
    assert [note.code for note in read_log(field.log_folder).heuristics] == [Code.XA_HEURRB]


# --- blindly ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("act", ["commit", "rollback"])
def test_another_nodes_needs_heuristic(field: Field, xabridge: Xabridge, act: str) -> None:
    field.prepare("shop", field.gtrid(1, node="orders-2", log_id=OTHER_LOG), "row")
    said = xabridge("recover", act, "orders-2:3fa91c:1", "--yes")
    assert said.code == 5
    assert "if its own log, which is not here, has the other decision" in " ".join(said.err.split())
    assert xabridge("recover", act, "orders-2:3fa91c:1", "--yes", "--heuristic").code == 0
    assert data(field) == ({"row"} if act == "commit" else set())
    assert not field.log_folder.exists(), "this node's log has nothing to do with it"


def test_another_managers_branch(field: Field, xabridge: Xabridge) -> None:
    xid = Xid(4660, b"somebody else's", b"branch")
    field.prepare("shop", b"", "row", xid=xid)
    assert xabridge("recover", "rollback", str(xid), "--yes").code == 5
    assert xabridge("recover", "rollback", str(xid), "--yes", "--heuristic").code == 0
    assert not branches(field)


def test_a_node_of_the_same_name_with_another_log(field: Field, xabridge: Xabridge) -> None:
    field.open_log().close()
    field.prepare("shop", field.gtrid(1, log_id=OTHER_LOG))
    assert xabridge("recover", "rollback", NAME, "--yes").code == 5


# --- forget -----------------------------------------------------------------------------------------------------------
def test_forget_what_the_resource_manager_completed(field: Field, xabridge: Xabridge) -> None:
    gtrid = decided(field)
    field.stores["shop"].complete_heuristically(xid_of(gtrid, "shop"), Code.XA_HEURRB)
    assert xabridge("recover", "run").code == 3, "somebody has to look at it"
    said = xabridge("recover", "forget", NAME, "--yes")
    assert said.code == 0
    assert not branches(field)
    assert not read_log(field.log_folder).heuristics


def test_a_note_of_a_resource_manager_that_is_not_configured_any_more(field: Field, xabridge: Xabridge) -> None:
    log = field.open_log()
    log.note_heuristic(Heuristic(Branch("gone", xid_of(field.gtrid(1), "gone")), Code.XA_HEURRB))
    log.close()
    said = xabridge("recover", "forget", NAME, "--yes")
    assert (said.code, said.out) == (
        0, "orders-1·3fa91c·1 on gone: forgotten here; its resource manager is not configured\n",
    )  # fmt: skip
    assert xabridge("recover", "list").code == 0


def test_what_is_prepared_is_not_forgotten(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    said = xabridge("recover", "forget", NAME, "--yes")
    assert said.code == 5
    assert "prepared, not completed" in said.err
    assert branches(field) == 2


def test_what_is_completed_is_neither_committed_nor_rolled_back(field: Field, xabridge: Xabridge) -> None:
    gtrid = decided(field)
    field.stores["shop"].complete_heuristically(xid_of(gtrid, "shop"), Code.XA_HEURCOM)
    said = xabridge("recover", "commit", NAME, "--yes")
    assert said.code == 5
    assert "it can only be forgotten" in " ".join(said.err.split())
    assert xabridge("recover", "commit", NAME, "--on", "broker", "--yes").code == 0


# --- who decides that it is done --------------------------------------------------------------------------------------
def test_a_dry_run_changes_nothing(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    before = sorted((path.name, path.read_bytes()) for path in field.log_folder.iterdir())
    said = xabridge("recover", "commit", NAME, "--dry-run")
    assert said.code == 0
    assert "commits the branch on broker: as recovery would" in said.err
    assert "dry run: nothing was done" in said.err
    assert branches(field) == 2
    assert sorted((path.name, path.read_bytes()) for path in field.log_folder.iterdir()) == before


def test_nobody_to_ask(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    said = xabridge("recover", "commit", NAME)
    assert (said.code, branches(field)) == (5, 2)
    assert "not a terminal: pass --yes" in said.err


@pytest.mark.parametrize(("typed", "code", "left"), [("yes\n", 0, 0), ("y\n", 5, 2), ("no\n", 5, 2), ("", 5, 2)])
def test_asking(field: Field, xabridge: Xabridge, typed: str, code: int, left: int) -> None:
    decided(field)
    said = xabridge("recover", "commit", NAME, typed=typed)
    assert "commit 2 branches? This can't be undone." in said.err
    assert (said.code, branches(field)) == (code, left)


def test_asking_on_a_terminal(field: Field) -> None:
    decided(field)
    screen = field.on_a_terminal(["recover", "commit", NAME], until="Type yes: ", typed="yes\n")
    assert "commit 2 branches? This can't be undone." in screen
    assert (field.last_code, branches(field)) == (0, 0)


def test_a_log_that_is_held_says_by_whom(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    with field.popen("recover", "watch", "--interval", "1h") as other:  # looking holds nothing
        assert other.stdout is not None
        other.stdout.readline()
        held = FileLog(field.log_folder, NODE)
        try:
            for command in (["commit", NAME, "--yes"], ["run"], ["end", NAME, "--gone", "shop", "--yes"]):
                field.configure("broker", *(["shop"] if command[0] != "end" else []))
                said = xabridge("recover", *command)
                assert said.code == 6, said
                assert "is in use by process " in said.err
                assert "recovers by itself" in said.err
        finally:
            held.close()
            other.send_signal(signal.SIGINT)
    assert branches(field) == 2


def test_a_decision_that_was_taken_since_it_was_shown(field: Field, xabridge: Xabridge) -> None:
    """The manager decides and stops while the operator is asked."""
    gtrid = undecided(field)
    said = xabridge("recover", "rollback", NAME, typed="yes\n", meanwhile=lambda: field.decide(gtrid, "broker", "shop"))
    assert "the decision was none when it was shown, and is commit now" in " ".join(said.err.split())
    assert (said.code, branches(field)) == (1, 2)


@pytest.mark.parametrize(("act", "code"), [("commit", 0), ("rollback --heuristic", 1)])
def test_a_branch_that_was_completed_since_it_was_shown(field: Field, xabridge: Xabridge, act: str, code: int) -> None:
    gtrid = decided(field)
    store = field.stores["shop"]

    def somebody_else() -> None:
        with store.lock:
            store.commit(store.known[xid_of(gtrid, "shop")])

    said = xabridge("recover", *act.split(), NAME, "--on", "shop", typed="yes\n", meanwhile=somebody_else)
    assert "the resource no longer knows it" in said.out + said.err
    assert said.code == code
    notes = [note.code for note in read_log(field.log_folder).heuristics]
    assert notes == ([] if code == 0 else [Code.XA_HEURHAZ])


def test_json(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    value = json.loads(xabridge("recover", "commit", NAME, "--yes", "--json").out)
    assert [step["consent"] for step in value["plan"]] == ["plain", "plain"]
    assert [done["ok"] for done in value["done"]] == [True, True]
    field.prepare("shop", field.gtrid(2), "another row")
    value = json.loads(xabridge("recover", "commit", "orders-1:3fa91c:2", "--yes", "--json").out)
    assert value["done"] == []
    assert value["trouble"].startswith("nothing was done: this goes against the log")


def test_what_is_not_there(field: Field, xabridge: Xabridge) -> None:
    assert xabridge("recover", "commit", "orders-1:3fa91c:99", "--yes").code == 1
    decided(field)
    said = xabridge("recover", "commit", NAME, "--on", "analytics", "--yes")
    assert said.code == 1
    assert "it has no branch on analytics" in said.err


def test_a_branch_that_can_not_be_reached(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    field.configure("broker", urls=[("shop", field.url("shop", socket="nowhere"))])
    said = xabridge("recover", "commit", NAME, "--yes")
    assert said.code == 5
    assert "shop can't be reached now" in said.err
    assert xabridge("recover", "commit", NAME, "--on", "broker", "--yes").code == 0


def test_several_at_once(field: Field, xabridge: Xabridge) -> None:
    for number in (1, 2, 3):
        field.prepare("shop", field.gtrid(number))
    field.open_log().close()
    said = xabridge("recover", "rollback", "orders-1:3fa91c:1", "orders-1:3fa91c:3", "--yes")
    assert said.code == 0
    assert [view.gtrid for view in field.stores["shop"].branches] == [field.gtrid(2)]
