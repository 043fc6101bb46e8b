"""What the page of pipelines shows: batches in every state, what waits, orphans, a log that is away or hangs."""

from __future__ import annotations

import asyncio
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.event_loop import in_loop
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.shop import Clock
from tests.xabridge.console.batches import Pipeline, pipeline
from tests.xabridge.console.conftest import Visitor, place_of, text_of
from tests.xabridge.console.scene import PASSWORD, broker_with_users
from xabridge.console.brokers import BrokerProblem, BrokerUnreachable
from xabridge.console.pages.pipelines import _queues
from xabridge.console.pipeline_questions import PipelineQuestions
from xabridge.console.pipeline_watch import KEPT_S, SHOWN, PipelineWatch
from xabridge.console.question_thread import QuestionThread
from xabridge.console.settings import WatchedPipelines, console_settings
from xabridge.testing.ports import free_port

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline in the middle of a batch, with its broker, for all tests that only look."""
    folder = tmp_path_factory.mktemp("pipeline")
    broker = broker_with_users(folder)
    with pipeline(broker, folder, query=HOSTILE) as one:
        yield one
    broker.stop()


@pytest.fixture
def changed(made: Pipeline, tmp_path: Path) -> Callable[..., WatchedPipelines]:
    """Changes a copy of its log."""

    def change(*changes: str, **values: str) -> WatchedPipelines:
        log, copy = sqlite3.connect(made.watched.log.removeprefix("sqlite:///")), sqlite3.connect(tmp_path / "copy.db")
        with closing(log), closing(copy), copy:
            log.backup(copy)
            for one in changes:
                copy.execute(f"UPDATE {one}", values)
        return replace(made.watched, log=f"sqlite:///{tmp_path}/copy.db")

    return change


@pytest.fixture
def look(made: Pipeline, visit: Callable[..., Visitor]) -> Callable[..., Visitor]:
    """Somebody who has signed in to a console that watches these pipelines."""

    def looks(pipelines: WatchedPipelines, user: str = "viewer", broker: EmbeddedBroker | None = None) -> Visitor:
        visitor = visit(place_of(broker or made.broker), pipelines=pipelines)
        visitor.sign_in(user)
        return visitor

    return looks


def test_the_page_shows_batches_and_what_waits(
    made: Pipeline, look: Callable[..., Visitor], changed: Callable[..., WatchedPipelines]
) -> None:
    """Also where the driver is gone while messages wait."""
    page = look(made.watched).get("/pipelines")
    said = text_of(page)
    assert "Pipelines 1 " in said
    assert "Driver alive" in said
    assert "Last epoch 5 active Decided 4 Logged by Spark 4" in said
    assert "Waiting 5 the oldest" in said
    assert HOSTILE not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "4 branches in doubt on main" in said

    assert "Orphans" not in said
    assert "skipped" not in said.lower()
    assert page.count('class="phases"') == 4
    assert "5 active" in said
    assert "4 done" in said
    assert f'href="/b/main/queue?name={made.queue}"' in page
    visitor = look(changed("xabridge_pipeline SET driver = :gone", gone=f"{socket.gethostname()}/1/1"))
    said = text_of(visitor.get("/pipelines"))
    assert "Driver gone" in said
    assert "stands still" in said
    assert "revenue stands still: 5 messages wait" in text_of(visitor.get("/"))


def test_brokers_that_were_skipped_and_orphans_are_shown_with_the_reason(
    broker: EmbeddedBroker, tmp_path: Path, look: Callable[..., Visitor], clock: Clock
) -> None:
    with pipeline(broker, tmp_path, queue="north", away="north") as other:
        visitor = look(other.watched, broker=broker)
        said = text_of(visitor.get("/pipelines"))
        assert "revenue a broker is away" in said
        assert re.search("Skipped epochs 1 to 5 skipped north: north can.+ be read: .*refused", said)
        other.give_up()
        said = until(visitor, clock, "orphans")
        assert "of them are orphans of abandoned attempts: the next micro-batch rolls them back" in said
        other.batch()
        clock.now += KEPT_S
        assert "orphans" not in text_of(visitor.get("/pipelines"))


def until(visitor: Visitor, clock: Clock, wanted: str) -> str:
    """What the page says, as soon as it has `wanted`."""
    return text_of(visitor.until("/pipelines", wanted, lambda: clock.pass_by(KEPT_S)))


def test_whatever_stands_in_the_log_is_text(
    changed: Callable[..., WatchedPipelines], look: Callable[..., Visitor]
) -> None:
    for changes in (
        (
            "xabridge_pipeline SET driver = :text", "xabridge_pipeline_query SET query = :text",
            "xabridge_pipeline_source SET source = 'main: ' || :text", "xabridge_gtrid SET state = substr(:text, 1, 9)",
        ),
        ("xabridge_pipeline_source SET source = :text", "xabridge_pipeline SET pipeline = :text"),
        ("xabridge_gtrid SET gtrid = :text || gtrid",),
    ):  # fmt: skip
        visitor = look(changed(*changes, text=f"{HOSTILE}\u202e"))
        for path in ("/pipelines", "/"):
            page = visitor.get(path)
            assert "<img" not in page.replace('<img src="/static', "")
            assert "\u202e" not in page


def test_who_sees_no_pipeline_is_told_why(
    made: Pipeline, look: Callable[..., Visitor], visit: Callable[..., Visitor]
) -> None:
    visitor = look(made.watched, "orders-svc")
    assert "revenue" not in visitor.get("/pipelines", status=403)
    assert "revenue" not in visitor.get("/")
    visitor = visit(place_of(made.broker))
    visitor.sign_in()
    assert "No pipeline is configured: [pipeline] log" in text_of(visitor.get("/pipelines"))
    visitor = look(WatchedPipelines("", trouble="the environment variable GONE is not set"))
    for path in ("/pipelines", "/"):
        assert "GONE is not set" in text_of(visitor.get(path))


def test_a_broker_that_the_console_does_not_watch(made: Pipeline, look: Callable[..., Visitor]) -> None:
    """By another name it is known by its address; elsewhere, what waits is not known."""
    other = WatchedPipelines(made.watched.log, (("main", "amqp://user@127.0.0.1:1/"),))
    for pipelines in (made.watched, other):
        visitor = look(pipelines)
        session = next(iter(visitor.console.sessions._by_key.values()))
        session.links["second"] = session.links.pop("main")
        said = text_of(visitor.get("/pipelines"))
        if pipelines is other:
            assert "Waiting not known" in said
            assert "this console has no broker that is resource main" in said
            assert "main could not be asked" in said
        else:
            assert "Waiting 5" in said


def test_a_log_that_is_away_is_told_at_once_and_asked_again(
    made: Pipeline, look: Callable[..., Visitor], clock: Clock
) -> None:
    visitor = look(replace(made.watched, log=f"postgresql://127.0.0.1:{free_port()}/nowhere"))
    assert "connection refused" in text_of(visitor.get("/pipelines")).lower()
    assert "Pipelines" in text_of(visitor.get("/"))
    visitor.console.pipelines._questions = PipelineQuestions(made.watched, SHOWN)
    until(visitor, clock, "Last epoch 5")


def test_what_hangs_costs_other_pages_nothing_and_hides_nothing_of_the_log(
    made: Pipeline, look: Callable[..., Visitor], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hangs = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/shop"
        visitor = look(WatchedPipelines(hangs))
        for path, patience_s in (("/queues", 60.0), ("/pipelines", 0.5), ("/", 0.5)):
            monkeypatch.setattr("xabridge.console.pipeline_watch.PATIENCE_S", patience_s)
            began = time.monotonic()
            visitor.client.get(path)
            assert time.monotonic() - began < 20, path
        assert re.search("log of the pipelines .*has not answered", text_of(visitor.get("/pipelines")))
        visitor = look(WatchedPipelines(made.watched.log, (*made.watched.resources, ("shop", hangs))))
        said = until(visitor, clock, "shop could not be asked: it has not answered within 3 s")
    assert "4 branches in doubt on main" in said


def test_a_defect_is_logged_and_told_and_costs_the_overview_nothing(
    made: Pipeline,
    look: Callable[..., Visitor],
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visitor = look(made.watched)
    nothing: dict[str, object] = {}
    monkeypatch.setattr(visitor.console.pipelines._questions, "prefixes", lambda: nothing["a defect"])
    clock.now += KEPT_S
    assert "a defect of the console" in text_of(visitor.get("/"))
    assert "KeyError: 'a defect'" in caplog.text


@in_loop
async def test_a_place_that_hangs_is_asked_nothing_else_and_ends_with_the_process() -> None:
    place, released = QuestionThread("test"), threading.Event()
    with pytest.raises(BrokerUnreachable, match="within"):
        await place.ask(lambda: released.wait(30), 0.05)
    with pytest.raises(BrokerUnreachable, match="not answered yet"):
        await place.ask(lambda: 1, 0.05)
    assert place._asked is not None
    released.set()
    assert await asyncio.wrap_future(place._asked)
    assert await place.ask(lambda: 2, 5.0) == 2

    with pytest.raises(ZeroDivisionError):
        await place.ask(lambda: 1 / 0, 5.0)
    assert place._thread is not None
    assert place._thread.daemon
    place.close(lambda: None)
    place.join(5.0)
    assert not place._thread.is_alive()


def test_a_console_whose_log_hangs_ends(tmp_path: Path, made: Pipeline) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "xabridge.toml").write_text(
            f'node = "n"\nlog = "file://{tmp_path}/log"\n[console.brokers]\nmain = "{place_of(made.broker)}"\n'
            f'[resources]\nshop = "postgresql://{place}/shop"\n[pipeline]\nlog = "postgresql://{place}/log"\n'
        )
        words = [sys.executable, "-m", "xabridge.cli", "console", "--listen", f"127.0.0.1:{port}"]

        with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "http" in process.stdout.readline()
                with httpx2.Client(
                    base_url=f"http://127.0.0.1:{port}", headers={"origin": f"http://127.0.0.1:{port}"}
                ) as client:
                    before = re.search(r'name="before" value="([^"]+)"', client.get("/login").text)
                    assert before is not None
                    signed = {"user": "viewer", "password": PASSWORD, "before": before[1], "next": ""}
                    client.post("/login", data=signed)
                    assert "has not answered yet" in client.get("/pipelines").text
                process.terminate()
                assert process.wait(15) == 0
            finally:
                process.kill()


def test_the_log_is_the_one_of_the_file(tmp_path: Path) -> None:
    def told(words: str) -> Any:
        file = tmp_path / "xabridge.toml"
        file.write_text(words, encoding="utf-8")
        return console_settings(file, {"PW": "p@ss"}).pipelines

    resources = (
        '[resources]\nshop = "postgresql://u@h/shop"\nb = "amqp://h"\n'
        'd = { url = "postgresql://h/d", mode = "decider" }\n'
    )
    assert told(resources) is None
    assert told('node = "n"\nlog = "file:///tmp/log"\n' + resources) is None
    of_the_node = told('node = "n"\nlog = "postgresql://u:${PW}@h/log"\n' + resources)
    assert of_the_node.log == "postgresql://u:p%40ss@h/log"
    assert [name for name, _ in of_the_node.resources] == ["shop", "b"]
    own = told('node = "n"\nlog = "file:///tmp/log"\n' + resources + '[pipeline]\nlog = "sqlite:////tmp/p.db"\n')
    assert own.log == "sqlite:////tmp/p.db"
    assert "p%40ss" not in repr(of_the_node)
    assert asyncio.run(PipelineWatch(None).look()) == (), "a watch without a log asks nobody"
    with pytest.raises(BrokerProblem):
        asyncio.run(PipelineWatch(WatchedPipelines("", trouble="why")).look())
    assert "GONE is not set" in told('node = "n"\n[pipeline]\nlog = "postgresql://u:${GONE}@h/log"\n').trouble


def test_a_pattern_stands_for_the_queues_that_the_pipeline_reads() -> None:
    def queue(name: str, *, lasting: bool = True, dead: bool = False) -> tuple[str, dict[str, Any]]:
        return name, {"name": name, "lasting": lasting, "for-dead-letters": dead}

    known = dict(
        [
            *map(queue, ("orders#1", "orders#0", "other", "a, b")),
            queue("orders#0.dead", dead=True),
            queue("orders#reply", lasting=False),
        ]
    )
    assert _queues("orders#*", known) == ["orders#0", "orders#1"]
    assert _queues("none*, other", known) == ["none*", "other"]
    assert _queues("a, b", known) == ["a, b"]
    assert _queues("other, orders#0.dead", known) == ["other", "orders#0.dead"]  # named, it is read
