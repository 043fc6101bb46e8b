"""What a node that runs shows and does for whoever has its tokens, and what it refuses."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.tm.two_resources import Clock, TwoResources
from tests.xabridge.cli.field import OTHER_LOG, OTHERS, Field, xid_of
from tests.xabridge.node.conftest import ACT_TOKEN, NAME, TOKEN, Asker, undecided
from tm import ConfigurationError, ResourceConfig, TransactionManager
from tm.log import read_log
from tm.recovery import Action
from xa import Code
from xabridge.node import REST, TICKET_S
from xabridge.operations.branch_completion import BranchCompleter
from xabridge.operations.survey import survey
from xabridge.testing.ports import free_port

Running = Callable[..., tuple[TransactionManager, Asker]]


def test_a_node_tells_what_its_log_knows(field: Field, running: Running) -> None:
    """What is under way is not in doubt."""
    decided = field.gtrid(8)
    field.decide(decided, "broker", "shop")
    manager, asker = running()
    operations: Any = manager._operations
    clock = operations._clock = Clock()
    field.prepare("shop", decided, "key")  # after the pass at the start
    other = field.gtrid(5, incarnation=OTHERS, node="orders-2", log_id=OTHER_LOG)
    field.prepare("shop", other, "another")
    told = asker.in_doubt()
    by_decision = {view["decision"]: view for view in told["survey"]["transactions"]}
    assert set(by_decision) == {"none", "unknown"}, "the pass at the start has ended the decision"
    assert "another node's" in by_decision["unknown"]["why"]
    assert told["acting"] is True
    manager.recover()
    assert field.stores["shop"].data == {}

    transaction = manager.begin()
    manager["broker"].write("a", 1)
    field.prepare("shop", transaction.gtrid, "as if its completion had begun")
    clock.now += 60
    told = asker.in_doubt()
    assert [view["decision"] for view in told["survey"]["transactions"]] == ["unknown"]
    assert told["live"] == [transaction.gtrid.hex()]
    status, said = asker.preview("rollback", str(transaction))
    assert status == 409
    assert "no such transaction is in doubt" in said["why"]
    transaction.rollback()
    assert len(asker.preview("rollback", str(transaction))[1]["told"]) == 2, "it is now"


def test_it_commits_and_rolls_back_as_recover_does(
    field: Field, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    manager, asker = running()
    gtrid = undecided(field)
    status, told = asker.preview("rollback", NAME)
    assert status == 200
    assert told["refused"] is None
    assert told["told"][1] == "rolls back the branch on broker: as recovery would"
    assert told["view"]["gtrid"] == gtrid.hex()
    caplog.set_level(logging.WARNING, "xabridge.node.audit")
    status, came = asker.act(told["ticket"])
    assert came["state"] == "done"
    assert [ok for ok, _ in came["said"]] == [True, True]

    assert not field.stores["broker"].data
    lines = [json.loads(record.message) for record in caplog.records if record.name == "xabridge.node.audit"]
    assert [(line["who"], line["came"], line["what"], line["transaction"]) for line in lines] == [
        ("anna", "asked", "rollback", NAME),
        ("anna", "done", "rollback", NAME),
    ]
    undecided(field)
    told = asker.preview("commit", NAME)[1]
    manager.recover()
    status, came = asker.act(told["ticket"])
    assert (status, came["state"]) == (200, "refused"), "it has changed since"
    assert not field.stores["shop"].data


def test_against_the_log_it_needs_consent_and_is_noted_first(field: Field, running: Running) -> None:
    manager, asker = running()
    gtrid = undecided(field)
    assert asker.do("commit", NAME, on=["shop"])["state"] == "refused"
    assert asker.in_doubt()["survey"]["transactions"]
    status, told = asker.preview("commit", NAME, on=["shop"])
    assert told["needs_heuristic"]
    assert "this splits the transaction" in told["told"][1]

    status, came = asker.act(told["ticket"], heuristic=True)
    assert (status, came["state"]) == (200, "done"), came
    assert field.stores["shop"].data == {"key": True}
    (noted,) = read_log(field.log_folder).heuristics
    assert (noted.branch.xid, noted.code) == (xid_of(gtrid, "shop"), Code.XA_HEURCOM)
    manager.recover()
    assert not field.stores["broker"].data, "which has no decision"
    forgotten = asker.do("forget", NAME)
    assert forgotten["state"] == "done", forgotten
    assert not read_log(field.log_folder).heuristics


def test_a_ticket_serves_once_and_expires(field: Field, running: Running) -> None:
    manager, asker = running()
    undecided(field)
    told = asker.preview("commit", NAME, on=["shop"])[1]
    first = asker.act(told["ticket"], heuristic=True)
    recorded = asker.act(told["ticket"], heuristic=True)
    assert first == recorded, "what came of it is told again"
    assert len(read_log(field.log_folder).heuristics) == 1
    manager.recover()

    field.prepare("broker", field.gtrid(2), "again")
    assert asker.act(told["ticket"], heuristic=True) == first
    assert asker.act("x" * 32)[0] == 410
    clock, operations = Clock(), manager._operations
    operations._clock = clock  # type: ignore[union-attr]
    told = asker.preview("rollback", "orders-1·3fa91c·2")[1]
    clock.now += TICKET_S + 1
    assert asker.act(told["ticket"])[0] == 410
    assert asker.in_doubt()["survey"]["transactions"]


def test_of_two_operators_one_does_it(field: Field, running: Running) -> None:
    _, asker = running()
    undecided(field)
    tickets = {doing: asker.preview(doing, NAME)[1]["ticket"] for doing in ("commit", "rollback")}
    with ThreadPoolExecutor(2) as pool:
        acts = {doing: pool.submit(asker.act, ticket, heuristic=True) for doing, ticket in tickets.items()}
    came = {doing: act.result()[1] for doing, act in acts.items()}
    assert sorted(one["state"] for one in came.values()) == ["done", "refused"]
    both = [bool(field.stores[name].data) for name in ("broker", "shop")]
    assert both == [came["commit"]["state"] == "done"] * 2, "not split"
    (lost,) = (one for one in came.values() if one["state"] == "refused")
    assert lost["why"].startswith("nothing was done")


def test_tokens_are_rotated_with_a_branch_in_doubt(field: Field, running: Running) -> None:
    """By a restart, at which the branch is recovered; from then on only the new tokens are good for anything."""
    manager, asker = running()
    undecided(field)
    assert [view["decision"] for view in asker.in_doubt()["survey"]["transactions"]] == ["none"]
    manager.close()

    looks, acts = "another token that looks", "another token that acts"
    _, asker = running(http_token=looks, http_act_token=acts)
    asked = {"doing": "recover", "name": "", "on": [], "gone": []}
    for token in (TOKEN, ACT_TOKEN, looks):
        assert asker.send("/node/preview", asked, token=token)[0] in {401, 403}
    assert asker.send("/node/in-doubt", token=TOKEN)[0] == 401
    assert asker.send("/node/preview", asked, token=acts)[0] == 200
    status, answer = asker.send("/node/in-doubt", token=looks)
    assert (status, answer["survey"]["transactions"]) == (200, [])
    assert [field.stores[name].data for name in ("broker", "shop")] == [{}, {}]


def test_a_pass_is_made_now(field: Field, running: Running) -> None:
    _, asker = running()
    undecided(field)
    status, told = asker.preview("recover")
    assert status == 200
    assert " ".join(" ".join(told["told"]).split()) == (
        f"{NAME}: would be rolled back on broker and shop, unless it is decided before"
    )
    came = asker.act(told["ticket"])[1]
    assert came["said"] == [[True, f"{NAME}: rolled back on broker, shop"]]
    assert asker.preview("recover")[1]["told"] == ["nothing found in doubt"]


def test_without_its_token_nothing_can_be_posted(field: Field, running: Running) -> None:
    _, asker = running()
    undecided(field)
    wanted: dict[str, Any] = {"doing": "rollback", "name": NAME, "on": [], "gone": []}
    for wrong in (TOKEN, "", ACT_TOKEN + "x"):
        assert asker.send("/node/preview", wanted, token=wrong)[0] == 401
        assert asker.send("/node/act", {"ticket": "x", "heuristic": True, "who": ""}, token=wrong)[0] == 401
    assert asker.send("/node/in-doubt", token=ACT_TOKEN)[0] == 401
    assert asker.send("/node/preview", token=ACT_TOKEN)[0] == 405
    kind = {"Content-Type": "text/plain"}
    assert asker.send("/node/preview", wanted, token=ACT_TOKEN, **kind)[0] == 415
    for length, status in (("65537", b"413"), ("x", b"411"), ("-1", b"411")):
        with socket.create_connection(("127.0.0.1", asker.port), timeout=30) as connection:
            connection.sendall(f"POST /node/preview HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())
            assert connection.recv(100).split(b" ")[1] == status

    for told in (b"", b"[]", b"{}", b"[" * 60000, {**wanted, "doing": "purge"}, {**wanted, "on": [1]}):
        assert asker.send("/node/preview", told, token=ACT_TOKEN)[0] == 400, told
    acts: list[dict[str, Any]] = [{}, {"ticket": [], "heuristic": True, "who": "x"}]
    for act in acts:
        assert asker.send("/node/act", act, token=ACT_TOKEN)[0] == 400
    assert not field.stores["shop"].data


def test_wrong_tokens_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"http_token": TOKEN, "http_act_token": TOKEN}, "the same as http_token"),
        ({"http_token": TOKEN, "http_act_token": "short"}, "at least 16 printable ASCII characters"),
        ({"http_act_token": ACT_TOKEN}, "has to see first"),
    ]
    for tokens, why in wrong:
        with pytest.raises(ConfigurationError, match=why):
            TwoResources(http=f"127.0.0.1:{free_port()}", **tokens)


def test_where_a_resource_decides_it_is_settled_first(field: Field, tmp_path: Path) -> None:
    port = free_port()
    resources: dict[str, str | ResourceConfig] = {
        "broker": field.url("broker"),
        "shop": ResourceConfig(f"sqlite:///{tmp_path}/shop.db", "decider"),
    }

    with TransactionManager(
        "orders-1", None, resources, http=f"127.0.0.1:{port}", http_token=TOKEN, http_act_token=ACT_TOKEN,
        background=False,
    ) as manager:  # fmt: skip
        asker = Asker(port)
        transaction = manager.begin()
        transaction.rollback()
        field.prepare("broker", transaction.gtrid, "order")
        (view,) = asker.in_doubt()["survey"]["transactions"]
        assert (view["decision"], view["decider"], view["at_work"]) == ("none", "shop", False), "it is its own"
        told = asker.preview("commit", str(transaction))[1]
        assert told["needs_heuristic"]
        assert asker.act(told["ticket"])[1]["state"] == "refused"
        assert asker.do("rollback", str(transaction))["said"][0][0] is True
        assert not asker.in_doubt()["survey"]["transactions"]


def test_a_manager_that_closes_takes_no_more(field: Field, running: Running) -> None:
    manager, asker = running()
    undecided(field)
    told = asker.preview("rollback", NAME)[1]
    assert manager._operations is not None
    manager._operations.close()
    assert asker.act(told["ticket"])[1] == {
        "state": "refused", "why": "nothing was done: this process is ending"
    }  # fmt: skip
    assert asker.preview("recover")[0] == 409
    assert asker.send("/node/in-doubt", token=TOKEN)[0] == 503
    assert not field.stores["shop"].data
    manager.close()


TAKES_S = 0.02


def test_who_looks_at_very_much_takes_little_of_the_processor(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, asker = running()
    clock, made = Clock(), []
    pages: Any = manager._operations
    pages._clock = clock

    def counted(seen: Any) -> Any:
        made.append(seen)
        began = time.thread_time()
        while time.thread_time() - began < TAKES_S:
            pass
        return survey(seen)

    monkeypatch.setattr("xabridge.node.survey", counted)
    for passed_s, count in ((0.0, 1), (0.5 * REST * TAKES_S, 1), (10 * REST * TAKES_S, 2)):
        clock.now += passed_s
        asker.in_doubt()
        assert len(made) == count
    asker.do("recover")
    asker.in_doubt()
    assert len(made) == 3, "after something was done it is looked at again"


def test_no_pass_runs_while_something_is_done_by_hand(
    field: Field, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that has read the notes before the act would roll back what the act has noted as committed."""
    manager, asker = running()
    undecided(field)
    ticket = asker.preview("commit", NAME)[1]["ticket"]
    going, held = threading.Event(), threading.Event()
    really = BranchCompleter.carry_out

    def waits(self: BranchCompleter, planned: Any) -> Any:
        held.set()
        assert going.wait(60)
        return really(self, planned)

    monkeypatch.setattr(BranchCompleter, "carry_out", waits)
    reports: list[Any] = []
    acting = threading.Thread(target=lambda: asker.act(ticket, heuristic=True))
    acting.start()
    assert held.wait(30)
    passing = threading.Thread(target=lambda: reports.append(manager.recover()))
    passing.start()
    passing.join(0.1)
    assert passing.is_alive(), "it waits"
    assert not reports
    going.set()
    passing.join(30)
    acting.join(30)
    assert [field.stores[name].data for name in ("broker", "shop")] == [{"key": True}] * 2
    assert not [finding for finding in reports[0].findings if finding.action is Action.ROLLED_BACK]
