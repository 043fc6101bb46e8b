"""What the console shows of nodes that run, and what is finished through them: with its refusals, lost answers, and
nodes that are killed while they act."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.two_resources import Clock
from tests.xabridge.cli.field import ROOT, Field, xid_of
from tests.xabridge.console.conftest import Visitor, choice, fields_of, place_of, text_of
from tests.xabridge.node.conftest import ACT_TOKEN, NAME, TOKEN, Asker, running, undecided
from tm import TransactionManager
from tm.log import read_log
from xa import Code
from xa.state_tables import BranchState
from xabridge.console import nodes
from xabridge.console.nodes import NodeLink
from xabridge.console.settings import WatchedNode
from xabridge.operations.branch_completion import BranchCompleter
from xabridge.testing.ports import free_port

Running = Callable[..., tuple[TransactionManager, Asker]]

__all__ = ["running"]  # the fixture

AT = "orders-a"
CHILD = """
import signal, sys
from tm import TransactionManager
with TransactionManager.from_config(sys.argv[1]):
    print("ready", flush=True)
    signal.pause()
"""


def watched(port: int, **changed: str) -> WatchedNode:
    told = {"token": TOKEN, "act_token": ACT_TOKEN, **changed}
    return WatchedNode(AT, f"http://127.0.0.1:{port}", **told)


@pytest.fixture
def field(node_field: Field) -> Field:
    """Nothing is in doubt yet."""
    return node_field


@pytest.fixture
def see(broker: EmbeddedBroker, visit: Callable[..., Visitor]) -> Callable[..., Visitor]:
    """Somebody who has signed in to a console that knows these nodes."""

    def seen(*known: WatchedNode, user: str = "operator") -> Visitor:
        visitor = visit(place_of(broker), nodes=known)
        visitor.sign_in(user)
        return visitor

    return seen


def chosen(visitor: Visitor, act: str, on: str = "") -> tuple[str, dict[str, str]]:
    """What the preview says, and the fields of its form."""
    return choice(visitor, act, NAME, f"{on}&at={AT}")


def until(visitor: Visitor, path: str, wanted: str) -> str:
    """The page, as soon as it has `wanted`: the console keeps for a moment what a node told."""

    def forget() -> None:
        for link in visitor.console.nodes:
            link._in_doubt.forget()

    return visitor.until(path, wanted, meanwhile=forget)


def audit(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [json.loads(record.message) for record in caplog.records if record.name == name]


def test_a_transaction_is_shown_as_its_node_knows_it(
    field: Field, running: Running, see: Callable[..., Visitor]
) -> None:
    manager, asker = running()
    operations: Any = manager._operations
    clock = operations._clock = Clock()
    visitor = see(watched(asker.port))
    assert "Nothing in doubt" in text_of(visitor.get("/transactions"))
    undecided(field)
    clock.now += 60  # it tells the same for a few seconds

    said = text_of(until(visitor, "/transactions", NAME))
    assert f"(as {AT} tells)" in said
    assert f"Recovery pass at {AT}…" in said
    said = text_of(visitor.get(f"/transactions/one?name={quote(NAME)}"))
    assert f"Told by {AT} (process {os.getpid()})" in said
    assert "Commit… Roll back… Retry now (recovery pass)…" in said
    page = visitor.get(f"/transactions/recover?at={AT}")
    assert "would be rolled back on broker and shop" in text_of(page)
    said = text_of(visitor.post("/transactions/recover", fields_of(page)))
    assert "rolled back on broker, shop" in said


def test_many_are_finished_through_the_node(
    field: Field, running: Running, see: Callable[..., Visitor], caplog: pytest.LogCaptureFixture
) -> None:
    _, asker = running()
    undecided(field)
    for store in ("broker", "shop"):
        field.prepare(store, field.gtrid(9))
    visitor = see(watched(asker.port))
    caplog.set_level(logging.INFO)

    page = until(visitor, "/transactions", "2 transactions in doubt")
    assert "Roll back all" in page
    page = visitor.get("/transactions/act-all?act=rollback&decision=none")
    said = text_of(page)
    assert f"Done by the process of {AT}, which has the log open." in said
    assert "rollback 4 branches of 2 transactions" in said
    said = text_of(visitor.post("/transactions/act", fields_of(page)))
    assert said.count(": rolled back") == 4
    assert "Nothing in doubt" in said
    (asked,) = [line for line in audit(caplog, "xabridge.node.audit") if line["came"] == "asked"]
    assert len(asked["transactions"]) == 2


def test_it_is_finished_through_the_node(
    field: Field, running: Running, see: Callable[..., Visitor], caplog: pytest.LogCaptureFixture
) -> None:
    manager, asker = running()
    undecided(field)
    visitor = see(watched(asker.port))
    caplog.clear()  # of the sign-in, if somebody has asked for it
    caplog.set_level(logging.INFO)
    said, fields = chosen(visitor, "commit")
    assert f"Done by the process of {AT}, which has the log open." in said
    assert "against the log, because no decision means rollback" in said
    said = text_of(visitor.post("/transactions/act", fields))
    assert "to do it anyway, tick the box" in said
    assert not field.stores["shop"].data

    said, fields = chosen(visitor, "rollback")
    said = text_of(visitor.post("/transactions/act", fields))
    assert f"{NAME} on broker: rolled back" in said
    assert f"{NAME} on shop: rolled back" in said
    assert "Nothing in doubt" in said
    said = text_of(visitor.post("/transactions/act", fields))
    assert f"{NAME} on shop: rolled back" in said, "the button was pressed twice"
    assert not manager.recover().findings
    console = [line["what"] for line in audit(caplog, "xabridge.console.audit")]
    assert console[:4] == ["finish", "refused", "finish", "finished"]
    at_the_node = audit(caplog, "xabridge.node.audit")
    assert [line["came"] for line in at_the_node] == ["asked", "refused", "asked", "done"]
    assert all(line["who"].startswith("operator") for line in at_the_node)


@pytest.mark.slow
def test_a_decision_is_ended_without_what_is_gone(field: Field, running: Running, see: Callable[..., Visitor]) -> None:
    """The name of what is gone is one that a page could run."""
    gone = "<img src=x onerror=alert(1)>"
    gtrid = field.gtrid(1)
    field.decide(gtrid, "broker", gone)
    manager, asker = running("broker")
    field.prepare("broker", gtrid, "order")
    visitor = see(watched(asker.port))
    said = text_of(visitor.get(f"/transactions/one?name={quote(NAME)}"))
    assert f"End without {gone}…" in said
    assert asker.preview("end", NAME, gone=["broker"])[1]["refused"] == (
        "broker is configured: recovery commits its branch"
    )
    said, fields = chosen(visitor, "end")
    assert "End the decision of orders-1·3fa91c·1" in said

    assert "makes one recovery pass first" in said
    assert f"ends the decision without {gone}: if that has the branch prepared" in said
    assert fields["gone"] == gone
    assert manager.log is not None
    field.stores["broker"].reachable = False
    assert "nothing was done" in text_of(visitor.post("/transactions/act", fields))
    assert manager.log.decisions(), "not while a resource is away"
    field.stores["broker"].reachable = True
    said, fields = chosen(visitor, "end")
    page = visitor.post("/transactions/act", fields)
    assert f"{NAME}: the decision is ended" in text_of(page)
    assert "<img src=x" not in page
    assert field.stores["broker"].data == {"order": True}
    assert not manager.log.decisions()


@pytest.mark.slow
def test_who_may_not_does_not(field: Field, running: Running, see: Callable[..., Visitor]) -> None:
    _, asker = running()
    undecided(field)
    one = f"/transactions/one?name={quote(NAME)}"
    act = f"/transactions/act?act=rollback&name={quote(NAME)}&at={AT}"
    looks = see(watched(asker.port, act_token=""))
    assert f"This console only looks at {AT}" in text_of(looks.get(one))
    assert "only looks" in looks.get(act, status=403)
    other = see(watched(asker.port, act_token="another token, which is wrong"))  # noqa: S106 — as it says
    assert "has another token for acting" in other.get(act, status=403)

    visitor = see(watched(asker.port))
    fields = {"act": "rollback", "name": NAME, "at": AT, "ticket": "x", "shown": ""}
    assert "no node of this name" in visitor.post("/transactions/act", {**fields, "at": "x"}, status=404)
    visitor.sign_in("viewer")
    assert "needs the permissions manage and coordinate = all" in text_of(visitor.get(one))
    visitor.get(act, status=403)
    assert "needs the permissions" in visitor.post("/transactions/act", fields, status=403)
    visitor.sign_in("orders-svc")
    assert NAME not in visitor.get("/transactions", status=403)
    assert len(asker.in_doubt()["survey"]["transactions"]) == 1


def test_a_node_that_is_away_or_has_no_such_page(running: Running, see: Callable[..., Visitor]) -> None:
    _, asker = running(http_act_token=None)
    assert asker.in_doubt()["acting"] is False
    assert asker.preview("recover")[0] == 404, "it is off unless configured"
    away = WatchedNode("away", f"http://127.0.0.1:{free_port()}", TOKEN, ACT_TOKEN)
    visitor = see(watched(asker.port), away)
    said = text_of(visitor.get("/transactions"))
    assert "node away could not be reached" in said
    assert "Nothing in doubt, as far as could be asked" in said
    assert f"Recovery pass at {AT}" not in said
    assert "can't be acted through" in text_of(visitor.get(f"/transactions/recover?at={AT}", status=409))
    visitor.get("/transactions/recover?at=away", status=503)


def test_a_lost_answer_is_asked_for_again(
    field: Field, running: Running, see: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, asker = running()
    undecided(field)
    visitor = see(watched(asker.port))
    really, posted = NodeLink._post, []

    def lost(self: NodeLink, path: str, asked: Any) -> Any:
        told = really(self, path, asked)
        posted.append(path)
        if posted.count("/node/act") == 1 and path == "/node/act":
            raise nodes._AnswerLost("the connection was cut")
        return told

    monkeypatch.setattr(NodeLink, "_post", lost)
    monkeypatch.setattr(nodes, "AGAIN_S", 0.01)
    _, fields = chosen(visitor, "rollback")
    assert f"{NAME} on broker: rolled back" in text_of(visitor.post("/transactions/act", fields))
    assert posted.count("/node/act") == 2


@contextlib.contextmanager
def child(field: Field, port: int) -> Iterator[subprocess.Popen[str]]:
    """The node in a process of its own."""
    environment = {**os.environ, **field.environment, "LOOKS": TOKEN, "ACTS": ACT_TOKEN, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = f"{environment['PYTHONPATH']}{os.pathsep}{ROOT}"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(field.config)], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
            process.wait()
    assert port


def configured(field: Field, port: int, shop: str) -> None:
    field.open_log().close()  # with an id that is known
    extra = (
        f'recovery_interval_s = 3600\nhttp = "127.0.0.1:{port}"\nhttp_token_env = "LOOKS"\nhttp_act_token_env = "ACTS"'
    )
    field.configure("broker", extra=extra, urls=[("shop", shop)])


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_node_that_is_killed_while_it_acts_is_looked_at_again(
    field: Field,
    see: Callable[..., Visitor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    monkeypatch.setattr(nodes, "LOST_S", 0.2)
    monkeypatch.setattr(nodes, "AGAIN_S", 0.05)
    caplog.set_level(logging.INFO)
    port = free_port()
    configured(field, port, field.url("shop", scheme="fatal-test") + f"&kill={when}-commit")
    with child(field, port) as process:
        gtrid = undecided(field)
        visitor = see(watched(port))
        until(visitor, "/transactions", NAME)
        _, fields = chosen(visitor, "commit", "shop")
        said = text_of(visitor.post("/transactions/act", {**fields, "heuristic": "yes"}, status=409))
        assert "Not known" in said
        assert f"it is unknown whether this was done by {AT}" in said
        assert process.wait(30) == -signal.SIGKILL

    assert audit(caplog, "xabridge.console.audit")[-1]["what"] == "unknown"
    (noted,) = read_log(field.log_folder).heuristics
    assert (noted.branch.xid, noted.code) == (xid_of(gtrid, "shop"), Code.XA_HEURCOM), "before it was done"
    assert bool(field.stores["shop"].data) == (when == "after")
    configured(field, port, field.url("shop"))

    with child(field, port):
        until(visitor, f"/transactions/one?name={quote(NAME)}", "noted in the log as XA_HEURCOM")
        again = visitor.post("/transactions/act", {**fields, "heuristic": "yes"})
        assert "nothing was done now: it is not known here what was shown" in text_of(again), "the ticket was another's"
        if when == "before":
            assert list(field.stores["shop"].branches.values()) == [BranchState.S3], (
                "recovery leaves it to the operator"
            )
            _, fields = chosen(visitor, "rollback", "shop")
            said = text_of(visitor.post("/transactions/act", {**fields, "heuristic": "yes"}))
            assert "on shop: rolled back" in said, "which corrects the note, so that nothing is left to forget"
        else:
            _, fields = chosen(visitor, "forget", "shop")
            assert "on shop: forgotten" in text_of(visitor.post("/transactions/act", fields))
    assert not field.stores["broker"].data
    assert not read_log(field.log_folder).heuristics


@pytest.mark.slow
def test_a_node_that_hangs_is_told_as_unknown(
    field: Field, running: Running, see: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, asker = running()
    undecided(field)
    visitor = see(watched(asker.port))
    monkeypatch.setattr(nodes, "DOING_S", 0.3)
    monkeypatch.setattr(nodes, "AGAIN_S", 0.05)
    monkeypatch.setattr("xabridge.node.ANSWER_S", 0.2)
    going = threading.Event()
    really = BranchCompleter.carry_out

    def hangs(self: BranchCompleter, planned: Any) -> Any:
        going.wait(60)
        return really(self, planned)

    monkeypatch.setattr(BranchCompleter, "carry_out", hangs)
    _, fields = chosen(visitor, "rollback")
    said = text_of(visitor.post("/transactions/act", fields, status=409))
    assert "it is unknown whether this was done" in said
    going.set()
    until(visitor, "/transactions", "Nothing in doubt")
