"""These tests run recover commit, rollback and forget by hand, and check what they refuse, explain, do, and note in the
log; also where the command is killed between its note and its effect: no transaction is split without a record of it.
"""

from __future__ import annotations

import json
import signal

import pytest

from tests.xabridge.cli.field import NAME, NODE, OTHER_LOG, OTHERS, Field, Xabridge, xid_of
from tm.log import Branch, FileLog, Heuristic, read_log
from xa import Code, Xid
from xa.state_tables import BranchState
from xabridge.testing.contract.client import case
from xabridge.testing.reference import NetworkFault, ReferenceResource


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


def noted(field: Field) -> list[Code]:
    """The heuristic outcomes in the log."""
    return [note.code for note in read_log(field.log_folder).heuristics]


# --- with the decision ------------------------------------------------------------------------------------------------
def test_commit_of_what_is_decided(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    said = xabridge("recover", "commit", NAME, "--yes")
    assert said.code == 0
    assert said.out == "orders-1·3fa91c·1 on broker: committed\norders-1·3fa91c·1 on shop: committed\n"
    assert "decision commit: the log has it" in said.err
    assert data(field) == {"order", "row"}
    assert not noted(field)
    assert xabridge("recover", "run").code == 0
    assert not read_log(field.log_folder).decisions


def test_rollback_of_what_is_not_decided(field: Field, xabridge: Xabridge) -> None:
    """One branch first, and then the other one, by its xid."""
    gtrid = undecided(field)
    assert xabridge("recover", "rollback", NAME, "--on", "shop", "--yes").code == 0
    assert list(field.stores["broker"].branches.values()) == [BranchState.S3]
    assert xabridge("recover", "rollback", str(xid_of(gtrid, "broker")), "--yes").code == 0
    assert (data(field), branches(field), noted(field)) == (set(), 0, [])
    for number in (1, 2, 3):
        field.prepare("shop", field.gtrid(number))
    said = xabridge("recover", "rollback", "orders-1:3fa91c:1", "orders-1:3fa91c:3", "--yes")
    assert said.code == 0
    assert [view.gtrid for view in field.stores["shop"].branches] == [field.gtrid(2)]


# --- against the decision ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("act", ["commit", "rollback"])
def test_what_goes_against_the_log_is_refused(field: Field, xabridge: Xabridge, act: str) -> None:
    """On a part of the branches it splits the transaction. On all branches of a decision it does not, and is refused
    all the same. Where nothing is decided, nobody knows whether these are all: one may have been rolled back before."""
    (undecided if act == "commit" else decided)(field)
    splits = ("this splits the transaction", "nothing is split", "this may split a transaction")
    whole = ("nothing is split", "this splits", "this goes against the log")
    for on, (told, not_told, why) in ((["--on", "shop"], splits), ([], splits if act == "commit" else whole)):
        said = xabridge("recover", act, NAME, *on, "--yes")
        assert (said.code, said.out) == (5, "")
        assert told in said.words
        assert f"{why}: to do it anyway, pass --heuristic" in said.words
        assert not_told not in said.words
        assert (branches(field), data(field)) == (2, set())
    assert xabridge("recover", act, NAME, "--heuristic", "--yes").code == 0
    assert data(field) == ({"order", "row"} if act == "commit" else set())
    assert set(noted(field)) == {Code.XA_HEURCOM if act == "commit" else Code.XA_HEURRB}


def test_every_branch_that_shows_is_not_every_branch(field: Field, xabridge: Xabridge) -> None:
    """Where somebody could not be asked, or has committed already, the rest is a part."""
    gtrid = decided(field)
    rm = ReferenceResource(field.stores["broker"])
    rm.open(field.stores["broker"].url, 1)
    rm.commit(xid_of(gtrid, "broker"), 1)
    assert "this splits the transaction" in xabridge("recover", "rollback", NAME, "--yes").words
    field.prepare("shop", field.gtrid(2))
    field.configure("broker", "shop", urls=[("analytics", field.url("analytics", socket="nowhere"))])
    assert "this splits the transaction" in xabridge("recover", "commit", "orders-1:3fa91c:2", "--yes").words


def test_what_is_left_after_a_rollback_by_hand_is_not_the_whole(field: Field, xabridge: Xabridge) -> None:
    undecided(field)
    assert xabridge("recover", "rollback", NAME, "--on", "broker", "--yes").code == 0
    said = xabridge("recover", "commit", NAME, "--heuristic", "--yes")
    assert (said.code, data(field)) == (0, {"row"})
    assert "this splits the transaction, if another branch of it is not committed too, or was rolled back" in said.words
    assert "nothing is split" not in said.words


@pytest.mark.parametrize(("act", "told"), [("commit", "it was never taken"), ("rollback", "it was to commit, and was")])
def test_show_says_of_a_heuristic_act_what_was_decided(field: Field, xabridge: Xabridge, act: str, told: str) -> None:
    (undecided if act == "commit" else decided)(field)
    assert xabridge("recover", act, NAME, "--on", "shop", "--heuristic", "--yes").code == 0
    assert xabridge("recover", "run").code == 3
    said = xabridge("recover", "show", NAME)
    assert told in said.words
    assert ("never taken" in said.words) == (act == "commit")


def test_a_lone_branch_of_a_lost_node_is_named_alone(field: Field, xabridge: Xabridge) -> None:
    """Others of its log have two branches: the missing one may be committed."""
    names = {number: f"orders-2·c07d11·{number}" for number in (1, 2, 3)}
    gtrids = {number: field.gtrid(number, node="orders-2", incarnation=OTHERS, log_id=OTHER_LOG) for number in names}
    for number in (1, 2):
        field.prepare("broker", gtrids[number])
        field.prepare("shop", gtrids[number])
    field.prepare("shop", gtrids[3])
    left = "one of usually two branches is left; the other may be committed"
    assert xabridge("recover", "list").words.count(left) == 1
    assert left in xabridge("recover", "show", names[3]).words
    assert left not in xabridge("recover", "show", names[1]).words
    shown = json.loads(xabridge("recover", "list", "--json").out)["transactions"]
    assert [view["name"] for view in shown if view["lone"]] == [names[3]]

    for dry in (["--dry-run"], []):
        said = xabridge("recover", "rollback", *names.values(), "--heuristic", "--yes", *dry)
        assert said.code == 5
        assert left in said.words
        assert f"of {names[3]} one branch is left" in said.words
        assert branches(field) == 5
    said = xabridge("recover", "rollback", names[1], names[2], "--heuristic", "--yes")
    assert (said.code, branches(field)) == (0, 1)
    field.prepare("broker", gtrids[1])
    field.prepare("shop", gtrids[1])
    dry_run = xabridge("recover", "rollback", names[3], "--heuristic", "--dry-run")
    assert (dry_run.code, left in dry_run.words) == (0, True)
    assert xabridge("recover", "rollback", names[3], "--heuristic", "--yes").code == 0
    assert branches(field) == 2


# --- all that fit a filter --------------------------------------------------------------------------------------------
def lost(field: Field, count: int) -> None:
    """Transactions of a node that is lost, with two branches each; then one of which one branch is left, one of this
    node, and one that somebody else has made."""
    for number in range(1, count + 1):
        gtrid = field.gtrid(number, node="orders-2", incarnation=OTHERS, log_id=OTHER_LOG)
        for store in ("broker", "shop"):
            field.prepare(store, gtrid, f"{store}-{number}")
    field.prepare("shop", field.gtrid(99, node="orders-2", incarnation=OTHERS, log_id=OTHER_LOG))
    undecided(field)
    field.prepare("shop", b"", "e", xid=Xid(9, b"foreign", b"b"))


def test_all_of_a_lost_node_are_rolled_back_together(field: Field, xabridge: Xabridge) -> None:
    lost(field, 30)
    listed = xabridge("recover", "list")
    assert "30 of node orders-2, lost or away, undecided: prepared on broker and shop" in listed.words
    assert (
        "1 of node orders-2, lost or away, undecided: prepared on shop; one of usually two branches is left"
        in listed.words
    )
    assert len(xabridge("recover", "list", "--lost", "--names").out.splitlines()) == 31
    names = xabridge("recover", "list", "--decision", "none", "--names").out.split()
    assert names == ["orders-1·3fa91c·1"]

    asked = ("recover", "rollback", "--lost", "--node", "orders-2")
    said = xabridge(*asked, "--yes")
    assert (said.code, branches(field)) == (5, 64), "it needs --heuristic"
    assert "rollback 60 branches of 30 transactions" in said.words
    assert all(f"orders-2·c07d11·{number}" in said.words for number in range(1, 31)), "all are shown"
    assert "1 left out: one of usually two branches is left; the other may be committed: name each alone" in said.words
    assert (xabridge(*asked, "--heuristic", "--dry-run").code, branches(field)) == (0, 64)
    said = xabridge(*asked, "--heuristic", "--yes")
    assert (said.code, branches(field), data(field)) == (0, 4, set())
    said = xabridge(*asked, "--heuristic", "--yes")
    assert (said.code, branches(field)) == (1, 4)
    assert "nothing that is in doubt here fits, and can be done with others" in said.words
    assert "1 left out: one branch is here, and others may be committed: name each alone" in said.words


def test_what_comes_after_the_preview_is_left_alone(field: Field, xabridge: Xabridge) -> None:
    lost(field, 2)
    late = field.gtrid(50, node="orders-2", incarnation=OTHERS, log_id=OTHER_LOG)

    def comes() -> None:
        for store in ("broker", "shop"):
            field.prepare(store, late)

    said = xabridge("recover", "rollback", "--lost", "--heuristic", typed="yes\n", meanwhile=comes)
    assert (said.code, said.out.count(": rolled back")) == (0, 4)
    assert "orders-2·c07d11·50" in xabridge("recover", "list", "--names").out


def test_a_filter_takes_whole_transactions(field: Field, xabridge: Xabridge) -> None:
    """One of their branches fits: all of them are meant, unless --on says otherwise."""
    undecided(field)
    said = xabridge("recover", "rollback", "--rm", "shop", "--dry-run")
    assert "rollback 2 branches of 1 transaction" in said.words
    assert (
        "rollback 1 branch of 1 transaction"
        in xabridge("recover", "rollback", "--rm", "shop", "--on", "shop", "--dry-run").words
    )
    for words in (["rollback"], ["rollback", NAME, "--node", NODE]):
        assert xabridge("recover", *words, "--yes").code == 2
    assert branches(field) == 2
    assert (
        "1 left out: nothing of it is completed by hand" in xabridge("recover", "forget", "--node", NODE, "--yes").words
    )


def test_a_heuristic_rollback_is_noted(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    said = xabridge("recover", "rollback", NAME, "--on", "shop", "--heuristic", "--yes")
    assert said.code == 0
    assert "orders-1·3fa91c·1 on shop: rolled back, and noted as a heuristic outcome" in said.out
    (note,) = read_log(field.log_folder).heuristics
    assert (note.branch.resource, note.code) == ("shop", Code.XA_HEURRB)

    for _ in range(2):
        said = xabridge("recover", "run")
        assert said.code == xabridge("recover", "list").code == 3
        assert (
            "completed on its own, noted on shop: an operator did it: recover rollback; it waits to be forgotten"
        ) in said.words
    assert data(field) == {"order"}, "split, as was asked for"
    assert "heurrb       ended     shop" in xabridge("recover", "list").out
    said = xabridge("recover", "forget", NAME, "--yes")
    assert said.code == 0
    assert "compare first" in said.words
    assert not noted(field)
    assert xabridge("recover", "list").code == xabridge("recover", "run").code == 0


def test_when_it_is_not_done_the_note_goes(field: Field, xabridge: Xabridge) -> None:
    undecided(field)
    field.stores["shop"].script.plan("commit", Code.XA_RETRY)
    said = xabridge("recover", "commit", NAME, "--on", "shop", "--heuristic", "--yes")
    assert said.code == 1
    assert "on shop: not done: " in said.out
    assert (noted(field), data(field)) == ([], set())


@pytest.mark.parametrize("fate", [NetworkFault.REQUEST_LOST, NetworkFault.REPLY_LOST])
def test_when_nobody_knows_the_note_stays(field: Field, xabridge: Xabridge, fate: NetworkFault) -> None:
    decided(field)
    field.stores["shop"].script.plan("rollback", fate=fate)
    said = xabridge("recover", "rollback", NAME, "--on", "shop", "--heuristic", "--yes")
    assert said.code == 1
    assert "on shop: unknown whether it was done: " in said.out
    assert noted(field) == [Code.XA_HEURRB]


# --- blindly ----------------------------------------------------------------------------------------------------------
def test_what_is_anothers_needs_heuristic(field: Field, xabridge: Xabridge) -> None:
    """Another node's and another transaction manager's; also that of a node of the same name with another log."""
    foreign = Xid(4660, b"somebody else's", b"branch")
    field.prepare("shop", field.gtrid(1, node="orders-2", log_id=OTHER_LOG), "a")
    field.prepare("shop", field.gtrid(2, node="orders-2", log_id=OTHER_LOG), "b")
    field.prepare("shop", b"", "c", xid=foreign)

    for act, name in (
        ("commit", "orders-2:3fa91c:1"), ("rollback", "orders-2:3fa91c:2"), ("rollback", str(foreign)),
    ):  # fmt: skip
        with case(act, name):
            said = xabridge("recover", act, name, "--yes")
            assert said.code == 5
            assert "its decision is not known here: this splits the transaction, unless every other" in said.words
            assert xabridge("recover", act, name, "--yes", "--heuristic").code == 0
    assert (data(field), branches(field)) == ({"a"}, 0)
    assert not field.log_folder.exists(), "this node's log has nothing to do with it"
    field.open_log().close()
    field.prepare("shop", field.gtrid(1, log_id=OTHER_LOG))
    assert xabridge("recover", "rollback", NAME, "--yes").code == 5


# --- forget -----------------------------------------------------------------------------------------------------------
def test_forget_what_the_resource_manager_completed(field: Field, xabridge: Xabridge) -> None:
    gtrid = decided(field)
    said = xabridge("recover", "forget", NAME, "--yes")
    assert said.code == 5
    assert "prepared, not completed" in said.err
    assert branches(field) == 2
    field.stores["shop"].complete_heuristically(xid_of(gtrid, "shop"), Code.XA_HEURRB)
    said = xabridge("recover", "commit", NAME, "--yes")
    assert said.code == 5
    assert "it can only be forgotten" in said.words
    assert xabridge("recover", "commit", NAME, "--on", "broker", "--yes").code == 0
    assert xabridge("recover", "run").code == 3, "somebody has to look at it"
    assert xabridge("recover", "forget", NAME, "--yes").code == 0
    assert (branches(field), noted(field)) == (0, [])


def test_a_note_of_a_resource_manager_that_is_not_configured_any_more(field: Field, xabridge: Xabridge) -> None:
    log = field.open_log()
    log.note_heuristic(Heuristic(Branch("gone", xid_of(field.gtrid(1), "gone")), Code.XA_HEURRB))
    log.close()
    said = xabridge("recover", "forget", NAME, "--yes")
    assert (said.code, said.out) == (
        0, "orders-1·3fa91c·1 on gone: forgotten here; its resource manager is not configured\n",
    )  # fmt: skip
    assert xabridge("recover", "list").code == 0


# --- who decides that it is done --------------------------------------------------------------------------------------
def test_it_asks(field: Field, xabridge: Xabridge) -> None:
    """A dry run changes nothing, and without a terminal nobody can be asked."""
    decided(field)
    before = field.log_files()
    said = xabridge("recover", "commit", NAME, "--dry-run")
    assert said.code == 0
    assert "commits the branch on broker: as recovery would" in said.err
    assert "dry run: nothing was done" in said.err
    said = xabridge("recover", "commit", NAME)
    assert said.code == 5
    assert "not a terminal: pass --yes" in said.err
    assert (branches(field), field.log_files()) == (2, before)
    for typed, code, left in (("y\n", 5, 2), ("no\n", 5, 2), ("", 5, 2), ("yes\n", 0, 0)):
        said = xabridge("recover", "commit", NAME, typed=typed)
        assert "commit 2 branches? This can't be undone." in said.err
        assert (said.code, branches(field)) == (code, left)


@pytest.mark.slow
def test_asking_on_a_terminal(field: Field) -> None:
    decided(field)
    screen = field.on_a_terminal(["recover", "commit", NAME], until="Type yes: ", typed="yes\n")
    assert "commit 2 branches? This can't be undone." in screen
    assert (field.last_code, branches(field)) == (0, 0)


def test_a_log_that_is_held_says_by_whom(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    held = FileLog(field.log_folder, NODE)
    try:
        assert xabridge("recover", "list").code == 3, "looking needs no hold"
        for command in (["commit", NAME, "--yes"], ["run"], ["end", NAME, "--gone", "shop", "--yes"]):
            field.configure("broker", *(["shop"] if command[0] != "end" else []))
            said = xabridge("recover", *command)
            assert said.code == 6, said
            assert "is in use by process " in said.err
            assert "recovers by itself" in said.err
    finally:
        held.close()
    assert branches(field) == 2


def test_a_decision_that_was_taken_since_it_was_shown(field: Field, xabridge: Xabridge) -> None:
    """The manager decides and stops while the operator is asked."""
    gtrid = undecided(field)
    said = xabridge("recover", "rollback", NAME, typed="yes\n", meanwhile=lambda: field.decide(gtrid, "broker", "shop"))
    assert "the decision was none when it was shown, and is commit now" in said.words
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
    assert noted(field) == ([] if code == 0 else [Code.XA_HEURHAZ])


def test_json(field: Field, xabridge: Xabridge) -> None:
    decided(field)
    value = json.loads(xabridge("recover", "commit", NAME, "--yes", "--json").out)
    assert [step["consent"] for step in value["plan"]] == ["plain", "plain"]
    assert [done["ok"] for done in value["done"]] == [True, True]
    field.prepare("shop", field.gtrid(2), "another row")
    value = json.loads(xabridge("recover", "commit", "orders-1:3fa91c:2", "--yes", "--json").out)
    assert value["done"] == []
    assert value["trouble"].startswith("nothing was done: this may split a transaction")


def test_what_is_not_there(field: Field, xabridge: Xabridge) -> None:
    assert xabridge("recover", "commit", "orders-1:3fa91c:99", "--yes").code == 1
    decided(field)
    said = xabridge("recover", "commit", NAME, "--on", "analytics", "--yes")
    assert said.code == 1
    assert "it has no branch on analytics" in said.err
    field.configure("broker", urls=[("shop", field.url("shop", socket="nowhere"))])
    said = xabridge("recover", "commit", NAME, "--yes")
    assert said.code == 5
    assert "shop can't be reached now" in said.err
    assert xabridge("recover", "commit", NAME, "--on", "broker", "--yes").code == 0


# --- killed -----------------------------------------------------------------------------------------------------------
def killed(field: Field, at: str, *command: str) -> None:
    """The command, in a process that dies before or after the verb at the shop."""
    decided(field)
    field.configure("broker", urls=[("shop", field.url("shop", scheme="fatal-test") + f"&kill={at}")])
    with field.popen("recover", *command) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    field.configure("broker", "shop")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_a_heuristic_rollback(field: Field, xabridge: Xabridge, when: str) -> None:
    killed(field, f"{when}-rollback", "rollback", NAME, "--on", "shop", "--heuristic", "--yes")
    (note,) = read_log(field.log_folder).heuristics
    assert (note.branch.resource, note.code) == ("shop", Code.XA_HEURRB)
    run = xabridge("recover", "run")
    assert data(field) == {"order"}
    if when == "before":
        assert "waits to be forgotten" in run.words
        assert list(field.stores["shop"].branches.values()) == [BranchState.S3], "recovery leaves it alone"
        assert xabridge("recover", "list").code == 3
        assert xabridge("recover", "rollback", NAME, "--heuristic", "--yes").code == 0
    assert xabridge("recover", "list").code == 3, "the note is left"
    assert xabridge("recover", "forget", NAME, "--yes").code == 0
    assert not branches(field)
    assert xabridge("recover", "list").code == 0


@pytest.mark.slow
def test_a_commit_after_a_note_of_a_rollback_that_did_not_happen_leaves_no_note(
    field: Field, xabridge: Xabridge
) -> None:
    """The decision has ended, and the note tells that it was to commit: the branch goes the same way now."""
    killed(field, "before-rollback", "rollback", NAME, "--on", "shop", "--heuristic", "--yes")
    assert xabridge("recover", "run").code == 3
    assert not read_log(field.log_folder).decisions
    said = xabridge("recover", "commit", NAME, "--heuristic", "--yes")
    assert (said.code, said.out) == (0, "orders-1·3fa91c·1 on shop: committed\n")
    assert (data(field), branches(field)) == ({"order", "row"}, 0)
    assert not read_log(field.log_folder).heuristics
    assert xabridge("recover", "list").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("command", [["commit", NAME, "--yes"], ["run"]], ids=["commit", "run"])
def test_killed_around_a_commit(field: Field, xabridge: Xabridge, when: str, command: list[str]) -> None:
    killed(field, f"{when}-commit", *command)
    assert xabridge("recover", "run").code == 0
    assert (data(field), branches(field)) == ({"order", "row"}, 0)
    image = read_log(field.log_folder)
    assert not image.heuristics
    assert not image.decisions
