"""These tests cover recover end: when it refuses, its messages, the decisions that it ends, and the branches that it
finishes first.
"""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

from tests.xabridge.cli.field import NAME, NODE, xid_of
from tests.xabridge.cli.served import DECIDER
from tests.xabridge.cli.test_recovering import decide, deciding, its_gtrid, without_the_shop
from tm.log import read_log
from xa import Code, Gtrid, Owner
from xa.tables import BranchState

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.xabridge.cli.field import Field, Xabridge

__all__ = ["deciding"]  # the fixture

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


def test_it_asks(field: Field, xabridge: Xabridge) -> None:
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


def test_json(field: Field, xabridge: Xabridge) -> None:
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


# --- where a resource decides -----------------------------------------------------------------------------------------
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
