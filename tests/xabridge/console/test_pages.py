"""What the pages show and do, and what they refuse, by the forms that a browser would send."""

from __future__ import annotations

import asyncio
import html
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.conditions import refused
from rm_amqp import Message
from rm_amqp.errors import Cause, ConnectionLost, lost_error
from rm_amqp.management import ManagementClient
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.shop import Clock
from tests.waiting import until
from tests.xabridge.cli.field import OTHER_LOG, OTHERS, Field
from tests.xabridge.console.conftest import BROWSER, HOST, Visitor, break_down, choice, fields_of, place_of, text_of
from tests.xabridge.console.scene import broker_with_users, url
from tests.xabridge.traffic import Traffic, post
from xa import TMSUCCESS, Code, XaError, Xid
from xabridge.console.app import application
from xabridge.console.brokers import KEPT_S, PAGE, BrokerLink, BrokerUnreachable, ResultUnknown
from xabridge.console.change_job import Job, Progress, Selection
from xabridge.console.console import Console
from xabridge.console.history import FINE_S, known
from xabridge.console.pages.messages import content_of
from xabridge.console.settings import ConsoleSettings, WatchedBroker
from xabridge.console.template_filters import name as shown_as

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "\u202eright to left\u202c",
    "nul \x00 and \x1b[31m",
    "{{ 7 * 7 }}",
    "x" * 10_000,
]
TAG = re.compile(r"<(script|img)(?![^>]*/static/)", re.IGNORECASE)


def depths(broker: EmbeddedBroker) -> dict[str, int]:
    with ManagementClient(url(broker)) as management:
        return {one["name"]: int(one["depth"]) for one in management.pages("queues", key="name") if one["lasting"]}


# -- looking
@pytest.mark.slow
def test_the_first_page_answers_three_questions(onlooker: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    said = text_of(onlooker.get("/"))
    assert "Does work flow? fine" in said
    assert "Waiting 67 in 5 queues" in said
    assert "Is anything stuck? fine nothing in doubt 1 transaction younger than recovery takes" in said
    assert "Is anything failing? fine 7 dead letters" in said
    assert "Nothing is wrong: 5 queues of 1 broker looked at" in said

    monkeypatch.setattr("xabridge.console.pages.overview.OLD_S", 0)  # so that it is old enough
    page = onlooker.get("/")
    assert 'class="answer wrong" href="#wrong"' in page
    said = text_of(page)
    assert "Is anything stuck? trouble 1 transaction in doubt" in said
    assert "transaction-in-doubt: a transaction is in doubt for longer than recovery takes" in said
    assert "xabridge recover list --older-than 5m" in said
    assert "Nothing is wrong" not in said
    assert "from orders: rejected in orders.dead 5" in said
    assert "ValueError: no such customer at shop/orders.py, line 17, handle, in orders.dead 1" in said


def test_a_branch_that_its_broker_calls_in_doubt_is_shown_before_five_minutes(
    filled_store: Path, tmp_path: Path, visit: Callable[..., Visitor]
) -> None:
    shutil.copy(filled_store, tmp_path)
    broker = broker_with_users(tmp_path, settings=Settings(in_doubt_s=0))
    try:
        visitor = visit(place_of(broker))
        visitor.sign_in()
        said = text_of(visitor.get("/"))
    finally:
        broker.stop()
    assert "Is anything stuck? trouble 1 branch in doubt branch in doubt" in said
    assert "1 branch at main in doubt, the oldest for" in said
    assert "younger than recovery takes" not in said


def test_every_page_shows_what_is_there(onlooker: Visitor) -> None:
    assert "orders.dead" in onlooker.get("/queues")
    page = text_of(onlooker.get("/b/main/queue?name=orders"))
    assert "Waiting 55" in page
    assert "1 held by prepared branch 7_" in page
    assert "1 message prepared" in text_of(onlooker.get("/b/main/queue?name=invoices"))
    number = re.search(r"connection\?number=(\w+)", onlooker.get("/connections"))
    assert number is not None
    for path, shown in (
        ("/b/main/queue?name=orders&q=nothing", "Nothing found"),
        ("/b/main/queue?name=orders.dead&q=reject", "rejected"),
        ("/dead", "ValueError: no such customer at shop/orders.py, line 17, handle 1"),
        ("/dead", "from orders: rejected 5"),
        ("/connections", "xabridge-operator-"),
        (f"/b/main/connection?number={number[1]}", "$management"),
        ("/users", "consume orders; produce invoices; coordinate own"),
        ("/b/main/change/purge?queue=orders", "purge 54 messages of orders for good (1 more is held, and stay)"),
        ("/b/main/change/purge?queue=orders", "can’t be undone"),
        ("/transactions", "This console has no node of its own"),
    ):
        assert shown in text_of(onlooker.get(path)), path

    for path, status, told in (
        ("/nothing", 404, "There is no such page"),
        ("/b/none/queue?name=orders", 404, "There is no broker of this name"),
        ("/b/main/queue?name=none", 409, "there is no queue &#39;none&#39;"),
    ):
        assert told in onlooker.get(path, status=status)
    assert "no node" in onlooker.post("/transactions/recover", status=403)
    assert [shown_as(name) for name in (" ", "  a b ", "a b")] == ["␣", "␣␣a b␣", "a b"]


def test_many_queues_are_searched_and_paged(tmp_path: Path, visit: Callable[..., Visitor]) -> None:
    """More than the console asks for at a time."""
    queues = {f"queue-{number:04}": QueueSettings() for number in range(PAGE + 20)}
    broker = broker_with_users(tmp_path / "many", settings=Settings(queues=queues))
    try:
        visitor = visit(f"amqp://{broker.address}/?timeout=20")
        visitor.sign_in()
        first = visitor.get("/queues")
        assert "520 queues" in text_of(first)
        assert "Page 1 of 11" in text_of(first)
        assert len(re.findall(r"queue\?name=", first)) == 50
        assert "queue-0519" in visitor.get("/queues?page=10")
        assert "queue-0519" in visitor.get("/queues?page=99")  # the list was longer when the page was linked
        assert text_of(visitor.get("/queues?q=Queue-012")).count("queue-012") == 10
    finally:
        broker.stop()


@pytest.mark.slow
def test_a_broker_that_hangs_holds_up_a_page_once(onlooker: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xabridge.console.brokers.PATIENCE_S", 0.1)
    going = threading.Event()

    def hangs(*_: Any, **__: Any) -> Any:
        going.wait(60)
        raise refused(Code.XAER_NOTA, "too late")

    monkeypatch.setattr(ManagementClient, "ask", hangs)
    monkeypatch.setattr(ManagementClient, "pages", hangs)
    began = time.monotonic()
    try:
        for _ in range(20):
            said = text_of(onlooker.get("/"))
            assert "Does work flow? not known yet" in said, "it may still answer"
            assert "Not known yet of broker main: it has not answered yet" in said
            assert "away" not in said
        assert time.monotonic() - began < 8  # one wait, not three for each of twenty pages
    finally:
        going.set()


def test_the_last_hour_is_drawn_and_gaps_are_gaps(onlooker: Visitor, clock: Clock) -> None:
    assert onlooker.client.portal is not None
    for _ in range(3):
        clock.now += FINE_S
        onlooker.client.portal.call(onlooker.console.sample, "main")
    clock.now += 60
    page = onlooker.get("/")
    assert re.search(r'<path class="line" d="M[\d.,L]+"', page)
    assert "in per second, last 2 minutes" in page
    clock.now += 600
    assert "in per second, last hour" in onlooker.get("/")


def test_a_broker_that_is_away_is_shown_and_costs_the_others_nothing(
    settled: EmbeddedBroker, away: str, visit: Callable[..., Visitor]
) -> None:
    visitor = visit(f"amqp://{settled.address}/?timeout=20", away)
    visitor.sign_in()
    for path in ("/", "/queues", "/dead", "/transactions", "/connections", "/users", "/audit"):
        said = text_of(visitor.get(path))
        assert "second" in said
        assert "can't be reached" in said
    said = text_of(visitor.get("/"))
    assert "Waiting 67" in said
    assert "now broker second is away: " in said
    assert "Is anything failing? fine 7 dead letters" in said
    assert "can&#39;t be reached" in visitor.get("/b/second/queue?name=orders", status=503)
    told = visitor.get("/transactions/one?name=orders-1", status=503)
    assert "whether orders-1 is in doubt is not known now: second: " in told, "it may be, at the second one"
    assert "main is away" in visit(away).sign_in(status=503), "nobody gets in"


def test_the_user_of_the_settings_watches_while_nobody_is_there(
    settled: EmbeddedBroker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bare = f"amqp://{settled.address}/?timeout=20"
    brokers = (
        WatchedBroker("main", bare, url(settled, "viewer")),
        WatchedBroker("second", bare, bare.replace("//", "//nobody:x@")),
    )
    console = Console(ConsoleSettings(brokers=brokers), None, clock)
    with TestClient(application(console), base_url=HOST):
        until(lambda: console.histories["main"].of("orders") and "second can't be watched" in caplog.text)
    line = console.histories["main"].of()
    assert line is not None
    assert known(line.depth) == [67.0]
    assert "nobody:x" not in caplog.text


@pytest.mark.slow
def test_a_broker_that_comes_back_is_used_again(filled: EmbeddedBroker, operator: Visitor, clock: Clock) -> None:
    """What it has told holds for a moment, which the console's clock measures."""
    assert "Waiting 67" in text_of(operator.get("/"))
    post(url(filled), "orders", Message("one more"))
    assert "Waiting 67" in text_of(operator.get("/"))
    clock.now += KEPT_S + 0.1
    assert "Waiting 68" in text_of(operator.get("/"))
    break_down(filled)
    clock.now += 1
    operator.get("/b/main/queue?name=orders", status=503)

    said = text_of(operator.get("/"))
    assert "Does work flow? trouble not known" in said
    assert "now broker main is away: " in said
    assert "Is anything stuck? not known yet nothing found in doubt" in said
    assert "Not known yet of" not in said, "it is away, which is said once"
    filled.start()
    operator.until("/", "Waiting 68", lambda: clock.pass_by(5))


# -- who may what
def test_without_a_permission_nothing_is_shown(onlooker: Visitor) -> None:
    onlooker.sign_in("orders-svc")
    for path in ("/", "/queues", "/dead", "/connections", "/users", "/audit"):
        page = onlooker.get(path)
        assert "may not view this broker" in page
        assert "orders.dead" not in page
    for path in ("/b/main/queue?name=orders", "/b/main/change/purge?queue=orders", "/b/main/user?name=operator"):
        assert "may not view this broker" in onlooker.get(path, status=403)


def test_who_may_look_changes_nothing_and_opens_nothing(settled: EmbeddedBroker, onlooker: Visitor) -> None:
    onlooker.sign_in("viewer")
    before = depths(settled)
    page = onlooker.get("/b/main/queue?name=orders.dead")
    assert "Purge" not in page
    message = re.search(r"message\?queue=orders.dead&amp;id=(\w+)", page)
    assert message is not None
    assert "needs the permission read_payload" in onlooker.get(f"/b/main/message?queue=orders.dead&id={message[1]}")
    fields = {"queue": "orders.dead", "id": message[1]}
    assert "may not read" in onlooker.post("/b/main/message", fields, status=403)
    for operation in ("purge", "retry", "move", "pause-queue", "delete-queue"):
        assert "may not manage" in onlooker.get(f"/b/main/change/{operation}?queue=orders", status=403)
    for operation in ("pause-queue", "delete-queue", "close-connection", "drop-branch", "remove-user"):
        fields = {"queue": "orders", "connection": "1", "xid": "7_YQ==_YQ==", "user": "viewer"}
        assert "may not manage" in onlooker.post(f"/b/main/change/{operation}", fields, status=403)

    fields = {"queue": "orders", "once": "x" * 16, "total": "1", "until": "ffffffff"}
    page = onlooker.post("/b/main/change/purge", fields)
    assert "may not manage" in page
    assert "Not finished" in page
    for path in ("user/password", "user/permissions", "queue/new"):
        fields = {"user": "viewer", "password": "x", "again": "x", "manage": "yes", "name": "x"}
        assert "may not manage" in onlooker.post(f"/b/main/{path}", fields, status=403)
    assert depths(settled) == before


# -- messages and queues
def group_of(operator: Visitor, clock: Clock, said: str) -> str:
    """The id of the group of dead letters of which the page says this."""
    row = re.search(rf"{said}.*?group=(\w+)", operator.until("/dead", said, lambda: clock.pass_by(5)), re.DOTALL)
    assert row is not None
    return row[1]


@pytest.mark.slow
def test_messages_are_moved_with_a_preview(filled: EmbeddedBroker, operator: Visitor, clock: Clock) -> None:
    traffic = Traffic(url(filled))

    def letters() -> None:
        traffic.reject("orders", 2)
        traffic.post("orders.dead", Message("of a consumer"))

    steps: list[tuple[str, dict[str, str], dict[str, int]]] = [
        ("copy?queue=orders", {"to": "parcels"}, {"orders": 55, "parcels": 56}),
        ("retry?queue=orders.dead&group=from orders: rejected", {}, {"orders.dead": 1, "orders": 60}),
        ("retry?queue=orders.dead", {"to": ""}, {"orders.dead": 0, "orders": 61}),
        ("letters", {}, {"orders.dead": 3, "orders": 59}),
        ("retry?queue=orders.dead", {"to": "parcels"}, {"orders.dead": 0, "orders": 61, "parcels": 57}),
        ("letters", {}, {"orders.dead": 3, "orders": 59}),
        ("purge?queue=orders.dead&group=nothing says why", {}, {"orders.dead": 2}),
        ("move?queue=orders", {"to": "invoices"}, {"orders": 1, "invoices": 62}),
        ("purge?queue=orders", {}, {"orders": 1}),
        ("purge?queue=parcels", {}, {"parcels": 0}),
    ]
    for path, fields, left in steps:
        before = depths(filled)
        if path == "letters":
            letters()
        else:
            query, _, group = path.partition("&group=")
            where = f"/b/main/change/{query}" + (f"&group={group_of(operator, clock, group)}" if group else "")
            said = text_of(operator.get(where))
            assert re.search(r"(purge|move|copy|retry) \d+ messages? of (orders|parcels)", said)
            assert depths(filled) == before
            operator.change(where, fields)
            said = text_of(operator.outcome())
        assert {name: depths(filled)[name] for name in left} == left, (path, said)
    traffic.close()


def test_more_messages_than_one_request_takes(
    broker: EmbeddedBroker, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xabridge.console.change_job.CHUNK", 30)
    monkeypatch.setattr("xabridge.console.change_job.PAGE", 20)
    traffic = Traffic(url(broker))
    traffic.post("many", *(Message(number) for number in range(101)))
    traffic.post("others")
    xid = Xid(7, b"holds the first", b"b")
    traffic.prepare(xid, "many", "others")
    operator.change("/b/main/change/move?queue=many", {"to": "others"})
    assert "<h1>Done" in operator.outcome()
    assert depths(broker) == {"many": 1, "others": 100}
    traffic.close()


class OtherHands:
    """A broker as a job asks it. Its queue has sixty messages, and `change` answers what the test wants: `done` of the
    ids or of a number, or a reason to leave them. It may answer every other question only."""

    name = "main"
    closed = False

    def __init__(self, change: Callable[[int, list[str], int], Any], *, is_silent: bool = False) -> None:
        self._change = change
        self._is_silent = is_silent
        self.questions = 0
        self.asked = 0

    def _answers(self) -> None:
        self.questions += 1
        if self._is_silent and self.questions % 2:
            raise BrokerUnreachable("it has not answered yet")

    async def queue(self, _: str) -> dict[str, Any]:
        self._answers()
        return {"depth": 60}

    async def ask(self, _: str, after: str = "", **__: Any) -> list[dict[str, Any]]:
        self._answers()
        begin = int(after or 0)
        return [
            {"id": f"{one:x}", "position": str(one + 1), "state": "available", "from": "orders", "why": "rejected"}
            for one in range(begin, min(begin + 20, 60))
        ]

    async def change(self, _: str, *, ids: str = "", most: int = 0, **__: Any) -> Any:
        self._answers()
        self.asked += 1
        return self._change(self.asked, ids.split(",") if ids else [], most)


def job_at(broker: OtherHands, total: int, **more: Any) -> Job:
    """A job that retries dead letters there."""
    link: Any = broker
    return Job("1", link, "retry", Selection("orders.dead", until="ffff"), {}, "retry", total, **more)


def test_what_somebody_else_works_with_ends_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request finds all of them held, and of each page some are gone when they are asked for."""
    monkeypatch.setattr("xabridge.console.change_job.PAGE", 20)

    def two_at_once(asked: int, ids: list[str], most: int) -> Any:
        count = len(ids) or most
        if asked <= 2:
            why = "not in the queue" if ids else "held by a consumer or a transaction"
            return {"done": 0, "left": {why: count}}
        return {"done": count, "left": {}}

    job = job_at(OtherHands(two_at_once), 100)
    asyncio.run(job.run())
    assert (job.done, dict(job.left), job.rest, job.same) == (40, {"not in the queue": 20}, 40, False)
    full = OtherHands(lambda _, ids, most: {"done": 0, "left": {"orders is full": len(ids) or most}})
    job = job_at(full, 100)
    asyncio.run(job.run())
    assert (job.done, full.asked, job.rest, job.same) == (0, 2, 80, True)


def test_a_change_waits_for_a_broker_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is unknown is not repeated: the answer to one change is lost."""
    monkeypatch.setattr("xabridge.console.change_job.PAGE", 20)
    monkeypatch.setattr("xabridge.console.change_job.AGAIN_S", 0.01)
    for loses, came in ((0, (Progress.DONE, 60, 60)), (3, (Progress.UNKNOWN, 20, 40))):
        moved: list[str] = []

        def change(asked: int, ids: list[str], most: int, loses: int = loses, moved: list[str] = moved) -> Any:
            if most:
                return {"done": 0, "left": {"held by a consumer or a transaction": most}}
            moved += ids
            if asked == loses:
                raise ResultUnknown("it is unknown whether this was done")
            return {"done": len(ids), "left": {}}

        job = job_at(OtherHands(change, is_silent=True), 60)
        asyncio.run(job.run())
        assert (job.progress, job.done, len(moved)) == came
        assert len(set(moved)) == len(moved), "each once"
        assert job.waiting == ""


def test_a_change_waits_for_so_long_and_can_be_stopped(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xabridge.console.change_job.AGAIN_S", 0.0)
    jobs: list[Job] = []
    for stops, came, count in ((False, "failed", 30), (True, "stopped", 5)):

        def gone(asked: int, _ids: list[str], _most: int, stops: bool = stops) -> Any:
            clock.now += 10
            jobs[-1].stopping = stops and asked == 5
            raise BrokerUnreachable("it is away")

        broker = OtherHands(gone)
        jobs.append(job := job_at(broker, 60, clock=clock))
        asyncio.run(job.run())
        assert (job.progress.value, broker.asked, job.said) == (came, count, "the broker is away: it is away")


def test_a_change_goes_on_after_a_restart_of_the_broker(
    broker: EmbeddedBroker, operator: Visitor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xabridge.console.change_job.CHUNK", 10)
    monkeypatch.setattr("xabridge.console.change_job.AGAIN_S", 0.05)
    traffic = Traffic(url(broker))
    traffic.post("many", *(Message(number) for number in range(100)))
    traffic.post("others", Message("there before"))
    traffic.close()
    really = BrokerLink.change
    changes: list[str] = []

    async def restarts(self: BrokerLink, operation: str, **told: Any) -> Any:
        changes.append(operation)
        if len(changes) == 4:
            await asyncio.to_thread(break_down, broker)
        if len(changes) == 8:
            await asyncio.to_thread(broker.start)
        clock.now += 5
        return await really(self, operation, **told)

    monkeypatch.setattr(BrokerLink, "change", restarts)
    operator.change("/b/main/change/move?queue=many", {"to": "others"})
    page = operator.outcome()
    assert "100 messages done of 100" in page, text_of(page)
    assert depths(broker) == {"many": 0, "others": 101}


def test_a_large_group_of_dead_letters_is_changed_as_it_was_shown(
    broker: EmbeddedBroker, operator: Visitor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several requests; what came since the preview stays, also if it is alike."""
    monkeypatch.setattr("xabridge.console.change_job.CHUNK", 30)
    letters = [Message(number, annotations={"x-opt-dead-reason": f"ValueError: no {number}"}) for number in range(100)]
    traffic = Traffic(url(broker))
    traffic.post("letters.dead", *letters, Message("of another group"))
    traffic.post("letters", Message("there before"))
    group = group_of(operator, clock, "ValueError: no 0")
    preview = operator.get(f"/b/main/change/retry?queue=letters.dead&group={group}")
    assert "retry 100 messages of letters.dead to where they came from: ValueError: no 0" in text_of(preview)

    fields = fields_of(preview)
    traffic.post("letters.dead", Message("later", annotations={"x-opt-dead-reason": "ValueError: no 7"}))
    traffic.close()
    without = {name: value for name, value in fields.items() if name != "until"}
    assert "look at what it would do first" in operator.post("/b/main/change/retry", without, status=409)
    operator.post("/b/main/change/retry", fields)
    page = operator.outcome()
    assert "<h1>Done" in page
    assert "100 messages done" in text_of(page)
    assert depths(broker) == {"letters": 101, "letters.dead": 2}
    assert "no letters of this group any more" in operator.get(
        "/b/main/change/purge?queue=letters.dead&group=none", status=409
    )


@pytest.mark.slow
def test_a_form_is_for_what_it_has_shown_and_serves_once(filled: EmbeddedBroker, operator: Visitor) -> None:
    told = fields_of(operator.get("/b/main/change/copy?queue=invoices"))
    for _ in range(2):
        assert "4 messages done of 4" in operator.post("/b/main/change/copy", {**told, "to": "parcels"})
    assert depths(filled)["parcels"] == 5
    assert "look at what it would do first" in operator.post("/b/main/change/purge", {"queue": "orders"}, status=409)
    shown = fields_of(operator.get("/b/main/change/purge?queue=invoices"))
    post(url(filled), "invoices", Message("later"), Message("still later"))

    without = {name: value for name, value in shown.items() if name != "total"}
    assert "look at what it would do first" in operator.post("/b/main/change/purge", without, status=409)
    assert "4 messages done of 4" in operator.post("/b/main/change/purge", shown)
    assert depths(filled)["invoices"] == 2
    assert operator.latest is not None
    path = operator.latest.url.path
    operator.post(f"{path}/stop")
    assert "Done" in operator.get(path)
    operator.sign_in("viewer")
    assert "no such change of yours" in operator.get(path, status=404)
    operator.post(f"{path}/stop", status=404)


@pytest.mark.parametrize(("operation", "later"), [("purge", 5), ("move", 5), ("retry", 5), ("copy", 5), ("purge", 0)])
def test_what_came_after_the_preview_of_a_queue_stays(
    filled: EmbeddedBroker, operator: Visitor, monkeypatch: pytest.MonkeyPatch, operation: str, later: int
) -> None:
    """Others have taken some of those that it has counted, and the page says so, whether more came or not."""
    monkeypatch.setattr("xabridge.console.change_job.CHUNK", 3)
    traffic = Traffic(url(filled))
    traffic.post("letters.dead", *map(Message, range(10)))
    traffic.post("letters", Message("there before"))
    shown = fields_of(operator.get(f"/b/main/change/{operation}?queue=letters.dead"))
    traffic.reject("letters.dead", 2)
    if later:
        traffic.post("letters.dead", *map(Message, range(later)))
    traffic.close()

    operator.post(f"/b/main/change/{operation}", {**shown, "to": "letters"})
    said = text_of(operator.outcome())
    assert "10 messages of letters.dead" in said
    assert "8 messages done of 10" in said
    assert "2 messages not there any more" in said
    assert depths(filled)["letters.dead"] == (8 + later if operation == "copy" else later)
    assert depths(filled)["letters"] == (1 if operation == "purge" else 9)


def test_a_request_whose_answer_is_lost_is_not_repeated(
    filled: EmbeddedBroker, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = ManagementClient.ask

    def lost(client: ManagementClient, operation: str, **arguments: Any) -> Any:
        answer = ask(client, operation, **arguments)
        if operation in {"copy", "pause-queue"}:
            asked.append(operation)
            raise lost_error(operation, ConnectionLost(Cause.LOST, "the reply was lost"))
        return answer

    monkeypatch.setattr(ManagementClient, "ask", lost)
    said = text_of(operator.change("/b/main/change/copy?queue=invoices", {"to": "parcels"}))
    assert "Not known" in said
    assert "it is unknown whether this was done" in said
    assert "it is unknown whether this was done" in operator.change(
        "/b/main/change/pause-queue?queue=orders", status=409
    )
    assert asked == ["copy", "pause-queue"]
    assert depths(filled)["parcels"] == 5
    assert "paused by operator" in text_of(operator.get("/b/main/queue?name=orders"))


def test_chosen_messages_only(filled: EmbeddedBroker, operator: Visitor) -> None:
    ids = re.findall(r'name="ids" value="(\w+)"', operator.get("/b/main/queue?name=orders.dead"))
    assert len(ids) == 6
    refused = operator.get("/b/main/change/retry?queue=orders.dead&selected=yes", status=409)
    assert "nothing is selected" in refused
    path = f"/b/main/change/retry?queue=orders.dead&selected=yes&ids={ids[0]}&ids={ids[1]}"
    assert "retry 2 messages of orders.dead to where they came from" in text_of(operator.get(path))
    operator.change(path)
    assert depths(filled)["orders.dead"] == 4
    assert "2 of the ids are not there" in text_of(operator.get(path))


def test_a_queue_comes_pauses_and_goes(filled: EmbeddedBroker, operator: Visitor) -> None:
    assert "made/here is there" in text_of(operator.post("/b/main/queue/new", {"name": "made/here"}))
    assert "there is a queue" in operator.post("/b/main/queue/new", {"name": "made/here"}, status=409)
    path = f"queue={quote('made/here')}"
    assert "also after a restart" in operator.get(f"/b/main/change/pause-queue?{path}")
    assert "paused by operator" in text_of(operator.change(f"/b/main/change/pause-queue?{path}"))
    assert "paused by" not in operator.change(f"/b/main/change/resume-queue?{path}")
    assert "delete queue made/here" in text_of(operator.change(f"/b/main/change/delete-queue?{path}"))
    assert "has messages (4)" in operator.change("/b/main/change/delete-queue?queue=invoices", status=409)
    assert "prepared branches hold" in operator.change(
        "/b/main/change/delete-queue?queue=orders", {"force": "yes"}, status=409
    )
    assert "made/here" not in depths(filled)
    assert "create-queue" in operator.get("/audit")


def test_the_content_is_opened_by_a_form_only(onlooker: Visitor) -> None:
    page = onlooker.get("/b/main/queue?name=orders.dead")
    number = re.findall(r"message\?queue=orders.dead&amp;id=(\w+)", page)[-1]
    page = onlooker.get(f"/b/main/message?queue=orders.dead&id={number}")
    assert "at shop/orders.py, line 17, handle" in page, "why it is a dead letter is known without its content"
    assert "orders-99" not in page
    said = text_of(onlooker.post("/b/main/message", {"queue": "orders.dead", "id": number}))
    assert "x-opt-dead-reason ValueError: no such customer" in said
    gone = onlooker.get("/b/main/message?queue=orders.dead&id=abc", status=409)
    assert "somebody has taken it" in gone


@pytest.mark.slow
def test_what_is_large_or_of_any_kind_is_shown(broker: EmbeddedBroker, operator: Visitor) -> None:
    post(url(broker), "large", Message("x" * 300_000))
    number = re.search(r"id=(\w+)", operator.get("/b/main/queue?name=large").partition("<tbody")[2])
    assert number is not None
    page = operator.get(f"/b/main/message?queue=large&id={number[1]}")
    assert "too large to be opened here" in page
    assert "Open the content" not in page
    for body in (None, b"\x00\xff", ["a", 1], {"k": b"v"}, 1.5, "text", True):
        assert content_of(Message(body).encode())["trouble"] == ""
    assert content_of(b"\x00\x53")["trouble"]
    assert content_of(Message("y" * 50_000).encode())["cut"] == 30_000


def test_connections_and_branches(filled: EmbeddedBroker, operator: Visitor) -> None:
    traffic = Traffic(url(filled, "orders-svc"))
    xid = Xid(9, b"working", b"b")
    traffic.work(xid, sent_to="invoices")
    traffic.rm.end(xid, 1, TMSUCCESS)
    assert "orders-svc" in operator.get("/transactions")
    operator.change(f"/b/main/change/drop-branch?xid={quote(str(xid))}")
    for number in re.findall(r"connection\?number=(\w+)", operator.get("/connections?q=orders-svc")):
        operator.change(f"/b/main/change/close-connection?connection={number}")
    assert "No connections" in operator.get("/connections?q=orders-svc")
    traffic.close()


def test_users_and_permissions(filled: EmbeddedBroker, operator: Visitor) -> None:
    page = operator.get("/audit?what=set-*")
    assert "No entries of these." in page
    assert 'class="trouble"' not in page
    nobody = operator.post("/b/main/user/permissions", {"user": "", "view": "yes"}, status=409)
    assert "expected a name" in text_of(nobody)
    fields = {"user": "ada", "password": "first", "again": "second"}
    assert "the two passwords differ" in operator.post("/b/main/user/password", fields, status=409)
    operator.post("/b/main/user/password", {**fields, "again": "first"})
    rule = {"user": "ada", "consume": "orders\r\ninvoices", "coordinate": "own", "view": "yes"}
    operator.post("/b/main/user/permissions", rule)
    assert "consume orders, invoices; coordinate own; view" in text_of(operator.get("/users"))

    with ManagementClient(f"amqp://ada:first@{filled.address}/?timeout=20") as management:
        assert management.ask("rights") == {
            "user": "ada", "manage": False, "read-payload": False, "coordinate-all": False,
        }  # fmt: skip
    operator.change("/b/main/change/remove-permissions?user=ada")
    operator.change("/b/main/change/remove-user?user=ada")
    assert "ada" not in text_of(operator.get("/users"))
    myself = {"user": "operator", "coordinate": "none"}
    assert "could not manage this broker any more" in operator.post("/b/main/user/permissions", myself, status=409)


def test_a_password_is_rotated(filled: EmbeddedBroker, operator: Visitor) -> None:
    fields = {"user": "orders-svc", "password": "second", "again": "second", "keep": "soon"}
    assert "'soon' is not a duration" in text_of(operator.post("/b/main/user/password", fields, status=409))
    page = text_of(operator.post("/b/main/user/password", {**fields, "keep": "2h"}))
    assert "The old one is valid for another 2 h" in page
    assert "the old password is valid for another" in text_of(operator.get("/users"))
    Traffic(url(filled, "orders-svc")).close()
    Traffic(f"amqp://orders-svc:second@{filled.address}/?timeout=20").close()
    operator.change("/b/main/change/revoke-old-password?user=orders-svc")
    assert "the old password is valid" not in text_of(operator.get("/users"))
    with pytest.raises(XaError):
        Traffic(url(filled, "orders-svc"))


def test_the_audit_page_has_both_addresses_and_is_filtered(filled: EmbeddedBroker, operator: Visitor) -> None:
    operator.post("/b/main/queue/new", {"name": "made"})
    operator.post("/b/main/queue/new", {"name": "made"}, status=409)
    done = r"operator from 127\.0\.0\.1:\d+, for the browser (\S+) create-queue queue made done"
    assert re.findall(done, _audit(operator)) == [BROWSER]
    assert "create-queue queue made refused there is a queue 'made' already" in _audit(operator)
    assert "create-queue" not in _audit(operator, "who=orders-svc")
    assert "sign-in" not in _audit(operator, "what=create-*")
    assert re.search(r"operator from 127\.0\.0\.1 sign-in done", _audit(operator, "who=op*&what=sign-in"))
    with ManagementClient(url(filled, "operator")) as management:
        entries = management.ask("audit", what="create-queue")
    assert [(one["browser"], one["from"].rpartition(":")[0]) for one in entries] == [(BROWSER, "127.0.0.1")] * 2


def _audit(visitor: Visitor, query: str = "") -> str:
    return text_of(visitor.get(f"/audit?{query}"))


# -- hostile strings
@pytest.mark.slow
def test_what_a_peer_has_chosen_is_text_everywhere(broker: EmbeddedBroker, operator: Visitor) -> None:
    traffic = Traffic(url(broker))
    for number, said in enumerate(HOSTILE):
        queue = (
            f"q{number} {said[:100]}".replace("\x00", "")
            .replace("\x1b", "")
            .replace("\u202e", "")
            .replace("\u202c", "")
        )
        letter = Message(
            said, id=said, subject=said, properties={said[:60]: said},
            annotations={"x-opt-dead-reason": said, "x-opt-dead-place": said},
        )  # fmt: skip
        traffic.post(queue, letter, letter)
        traffic.reject(queue, 1)
        traffic.post(f"{queue}.dead", letter)
        traffic.prepare(Xid(3, f"{said[:30]}".encode()[:60], b"<b>"), queue, queue)
    pages = ["/", "/queues", "/dead", "/transactions", "/connections", "/users", "/audit", "/queues?q=%3Cscript%3E"]
    for name in depths(broker):
        pages.append(f"/b/main/queue?name={quote(name, safe='')}")
        if not name.endswith(".dead"):
            pages.append(f"/b/main/change/purge?queue={quote(name, safe='')}")

    found = re.findall(r"/transactions/one\?name=([^\"]+)", operator.get("/transactions"))
    pages += [f"/transactions/one?name={name}" for name in found]
    for path in pages:
        page = operator.get(path)
        assert not TAG.search(page), path
        assert "\x00" not in page
        assert "\u202e" not in page
        assert "x" * 3000 not in page
        assert " 49 " not in text_of(page).replace("1 49", "")

    for name in depths(broker):
        for number in re.findall(
            r'name="ids" value="(\w+)"', operator.get(f"/b/main/queue?name={quote(name, safe='')}")
        ):
            opened = operator.post("/b/main/message", {"queue": name, "id": number})
            assert not TAG.search(opened)
            assert "\u202e" not in opened
    traffic.close()


# -- transactions of a node
def test_transactions_of_the_node_are_drawn(of_a_node: Visitor) -> None:
    said = text_of(of_a_node.get("/transactions"))
    assert "3 transactions in doubt" in said
    assert "orders-1·3fa91c·8231" in said
    page = of_a_node.get(f"/transactions/one?name={quote('orders-1·3fa91c·8231')}")
    said = text_of(page)
    assert "Decision commit: the log has it; recovery commits the remaining branches" in said
    assert "Recovery would be committed on broker and shop" in said
    assert "2 messages: 1 from orders, 1 to invoices" in said
    assert 'aria-label="Decision: commit, this node&#39;s log knows. broker prepared' in page
    assert "is not in doubt any more" in of_a_node.get("/transactions/one?name=none-1", status=409)
    of_a_node.get("/transactions/one?name=", status=404)


@pytest.mark.slow
def test_a_choice_says_what_it_does_and_does_that(of_a_node: Visitor, field: Field) -> None:
    said, fields = choice(of_a_node, "rollback", "orders-1·3fa91c·8231", "shop")
    assert "rolls back the branch on shop: this splits the transaction, because the decision is to commit" in said
    said = text_of(of_a_node.post("/transactions/act", fields))
    assert "nothing was done: this may split a transaction: to do it anyway, tick the box" in said
    assert [len(field.stores[name].in_doubt) for name in ("broker", "shop")] == [1, 2]

    said, fields = choice(of_a_node, "commit", "orders-1·3fa91c·8231")
    assert "commits the branch on broker: as recovery would" in said
    fields["shown"] = fields["shown"].replace("as recovery would", "something else")
    assert "has changed since it was shown" in of_a_node.post("/transactions/act", fields)
    _, fields = choice(of_a_node, "commit", "orders-1·3fa91c·8231")
    said = text_of(of_a_node.post("/transactions/act", fields))
    assert "orders-1·3fa91c·8231 on broker: committed" in said
    assert "orders-1·3fa91c·8231 on shop: committed" in said

    said, fields = choice(of_a_node, "rollback", "orders-2·c07d11·114")
    assert "its decision is not known here: this splits the transaction, unless every other" in said
    said = text_of(of_a_node.post("/transactions/act", {**fields, "heuristic": "yes"}))
    assert "orders-2·c07d11·114 on shop: rolled back" in said


@pytest.mark.slow
def test_all_that_fit_a_filter_are_finished_as_they_were_shown(of_a_node: Visitor, field: Field, clock: Clock) -> None:
    """Also what is refused, left out, or comes later; a name in the form that was not shown is of no use."""
    for number in range(1, 31):
        for store in ("broker", "shop"):
            field.prepare(store, field.gtrid(number, incarnation=OTHERS, node="orders-2", log_id=OTHER_LOG))
    page = of_a_node.until("/transactions?node=orders-2", "31 transactions in doubt of 33", lambda: clock.pass_by(5))
    said = text_of(page)
    assert "of node orders-2, lost or away, undecided: prepared on broker and shop" in said
    assert "8231" not in said
    for query, count in (
        ("decision=commit", 1),
        ("resource=broker&node=orders-2", 30),
        ("lost=yes", 31),
        ("older=1d", 0),
    ):
        assert f"{count} transaction" in text_of(of_a_node.get(f"/transactions?{query}"))

    page = of_a_node.get("/transactions/act-all?act=rollback&node=orders-2")
    said = text_of(page)
    assert "rollback 60 branches of 30 transactions" in said
    assert all(f"orders-2·c07d11·{number}" in said for number in range(1, 31))
    assert "1 left out: one of usually two branches is left" in said
    fields = fields_of(page)
    field.prepare("broker", field.gtrid(77, incarnation=OTHERS, node="orders-2", log_id=OTHER_LOG))
    assert "tick the box" in text_of(of_a_node.post("/transactions/act", fields))
    changed = {**fields, "keys": fields["keys"].partition("\n")[2], "heuristic": "yes"}
    assert "has changed since it was shown" in of_a_node.post("/transactions/act", changed)
    assert len(field.stores["broker"].in_doubt) == 32

    said = text_of(of_a_node.post("/transactions/act", {**fields, "heuristic": "yes"}))
    assert "60 branches are done." in said
    assert [len(field.stores[name].in_doubt) for name in ("broker", "shop")] == [2, 2]
    gone = of_a_node.get("/transactions/act-all?act=forget&node=orders-2", status=409)
    assert "left out: nothing of it is completed by hand" in gone
    of_a_node.get("/transactions/act-all?act=end&node=orders-2", status=404)


def test_a_manager_that_runs_keeps_its_log(of_a_node: Visitor, field: Field) -> None:
    _, fields = choice(of_a_node, "commit", "orders-1·3fa91c·8231")
    log = field.open_log()
    try:
        said = text_of(of_a_node.post("/transactions/act", fields))
        assert "The transaction manager that holds it recovers by itself" in said
        assert "nothing was done" in said
        assert "recovers by itself" in of_a_node.post("/transactions/recover", status=409)
    finally:
        log.close()
    assert "would be committed on broker and shop" in text_of(of_a_node.get("/transactions/recover"))
    said = text_of(of_a_node.post("/transactions/recover"))
    assert "orders-1·3fa91c·8231: committed on broker, shop" in said
    assert "orders-2·c07d11·114: left alone: belongs to node orders-2" in said


def test_finishing_needs_its_permissions(of_a_node: Visitor, field: Field) -> None:
    of_a_node.sign_in("viewer")
    assert "orders-1·3fa91c·8231" in of_a_node.get("/transactions")
    needs = "needs the permissions manage and coordinate = all at main"
    assert needs in of_a_node.get(f"/transactions/act?act=commit&name={quote('orders-1·3fa91c·8231')}", status=403)
    for path in ("/transactions/act", "/transactions/recover"):
        fields = {"act": "commit", "name": "orders-1·3fa91c·8231", "shown": ""}
        assert needs in of_a_node.post(path, fields, status=403)
    of_a_node.sign_in("orders-svc")
    assert "may not view" in of_a_node.get("/transactions", status=403)
    assert [len(field.stores[name].in_doubt) for name in ("broker", "shop")] == [1, 2]


def test_each_transaction_has_an_address(settled: EmbeddedBroker, field: Field, visit: Callable[..., Visitor]) -> None:
    field.prepare("broker", b"g", xid=Xid(7, b"of somebody", b"1"))
    field.prepare("shop", b"g", xid=Xid(7, b"of somebody", b"2"))
    visitor = visit(place_of(settled), field=field)
    visitor.sign_in()
    names = re.findall(r'row"><a href="(/transactions/one[^"]+)">([^<]+)<', visitor.get("/transactions"))
    assert len(names) == 4
    for path, name in names:
        assert f"<h1>{name}</h1>" in visitor.get(html.unescape(path))
    said, _ = choice(visitor, "rollback", str(Xid(7, b"of somebody")))
    assert "the branch on broker" in said
    assert "the branch on shop" in said


def test_the_preview_of_a_recovery_pass_is_in_whole_sentences(of_a_node: Visitor, field: Field) -> None:
    """Not in the lines of a terminal, of which each would be torn off."""
    field.decide(field.gtrid(9000), "a resource that is not configured any more")
    page = html.unescape(of_a_node.get("/transactions/recover"))
    assert "␣" not in page
    assert re.search(
        r"<li>orders-1·3fa91c·9000: decided to commit, but not configured: .* Only if it is gone for good: "
        r"xabridge recover end orders-1·3fa91c·9000 --gone '.*'</li>",
        page,
    )
