"""These tests check what a broker tells those who watch it: its figures, their number, readiness, and the pages."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from proton import symbol

from dtx.amqp.messages import DELIVERY_DELAY
from dtx.broker.broker import Broker
from dtx.broker.config import Address, BrokerConfig
from dtx.broker.queues.queue import LOOKED_AT
from dtx.broker.settings import QueueSettings, Settings
from dtx.broker.telemetry import readiness
from dtx.broker.telemetry.figures import BrokerFigures, FigureReader
from dtx.broker.telemetry.metrics import METRICS, STATE
from dtx.protocol.commands import Start
from dtx.store.contract import Step, StoreAway, StoreFull
from dtx.store.sql import SqlStore
from tests.dtx.broker.peer import Coordinator, Peer, World, queue_told
from tests.dtx.broker.sockets import on_a_broker, serving, until
from tests.dtx.store.stores import Loop
from tests.event_loop import in_loop
from tests.postgres import Postgres
from tests.programs import loaded_by
from xa import Xid
from xa.telemetry import exposition
from xa.telemetry.conditions import CERTIFICATE_ENDS, LEASE_LOST, STORE_FULL
from xa.telemetry.metric import OTHER, prometheus_label
from xabridge.cli import main
from xabridge.testing.broker import BrokerProcess

WAIT_S = 30
LEASE_S = 2.0


def taken(figures: FigureReader) -> BrokerFigures:
    return asyncio.run(figures.take())


# -- figures
def test_the_figures_are_those_of_the_queues(world: World, peer: Peer) -> None:
    peer.fill("orders", "a", "b", "c")
    peer.first("orders")
    world.clock.seconds += 5
    world.container.resource.tick()
    figures = taken(FigureReader(world.container, 10))
    orders = figures.queues["orders"]
    assert (orders.depth, orders.held, orders.consumers, orders.came, orders.went) == (3, 1, 1, 3, 0)
    assert orders.octets > 0
    assert orders.oldest_s == pytest.approx(5, abs=1.1)
    assert (figures.connections, figures.sessions, figures.queue_count) == (1, 1, 1)


def test_a_message_whose_time_has_not_come_does_not_wait(world: World, peer: Peer) -> None:
    """It is counted apart, however many there are in front, and its age is that of nobody who waits for a consumer."""

    def told() -> tuple[int, int, float | None]:
        world.container.resource.tick()
        one = taken(FigureReader(world.container, 10)).queues["q"]
        return one.depth, one.delayed, one.oldest_s

    peer.post_many(range(LOOKED_AT + 1), annotations={symbol(DELIVERY_DELAY): 86_400_000})
    world.clock.seconds += 900
    assert told() == (LOOKED_AT + 1, LOOKED_AT + 1, None)
    shown = queue_told(peer)
    assert (shown["depth"], shown["oldest"]) == (LOOKED_AT + 1, None)
    peer.fill("q", "waits")
    world.clock.seconds += 5
    depth, delayed, oldest_s = told()
    assert (depth, delayed) == (LOOKED_AT + 2, LOOKED_AT + 1)
    assert oldest_s == pytest.approx(5, abs=1.1)
    assert queue_told(peer)["oldest"] == pytest.approx(world.clock.wall_ms() - 5000, abs=1100)


def test_branches_are_counted_by_their_state(world: World, peer: Peer, control: Coordinator) -> None:
    peer.prepared(posts="out")
    world.clock.seconds += 7
    control.declare(Start(Xid(1, b"two", b"b")))
    figures = taken(FigureReader(world.container, 10))
    assert figures.branches == {"active": 1, "idle": 0, "prepared": 1, "rollback_only": 0, "heuristic": 0}
    assert figures.in_doubt_s == pytest.approx(7, abs=0.1)


def test_dead_letters_are_counted_where_they_come_from_and_where_they_are(world: World, peer: Peer) -> None:
    peer.fill("orders", "bad")
    _, delivery, _ = peer.first("orders")
    peer.settle(delivery, delivery.REJECTED)
    queues = taken(FigureReader(world.container, 10)).queues
    assert (queues["orders"].dead_lettered, queues["orders"].dead_letters) == (1, 0)
    assert (queues["orders.dead"].dead_lettered, queues["orders.dead"].dead_letters) == (0, 1)


def test_a_thousand_queues_are_not_a_thousand_series(world: World, peer: Peer) -> None:
    """And queues in memory have none of their own."""
    resource = world.container.resource
    for number in range(1000):
        resource.create(f"q{number}")
    resource.settle()
    world.pump()
    peer.receiver(None, 1)
    for name in ("q0", "q998", "q999"):
        peer.fill(name, "x")
    figures = FigureReader(world.container, 10)
    told = taken(figures)
    assert set(told.queues) == {f"q{number}" for number in range(10)} | {OTHER}
    assert (told.queues["q0"].came, told.queues[OTHER].came, told.queues[OTHER].depth) == (1, 2, 2)
    assert told.queue_count == 1001

    # What is deleted is still counted, and a new queue takes the place of a deleted one that had a name of its own.
    for name in ("q999", "q1"):
        resource.drop_lasting(resource.queues[name])
    resource.create("new")
    told = taken(figures)
    assert (told.queues[OTHER].came, told.queues[OTHER].depth) == (2, 1)
    assert "q1" not in told.queues
    assert "new" in told.queues
    assert len(told.queues) == 11


def test_no_queue_is_named_where_none_is_to_be(world: World, peer: Peer) -> None:
    peer.fill("q.dead", "a letter")
    for _ in range(10):
        world.clock.seconds += 1
        world.container.resource.tick()
    for most, named in ((0, []), (1, ["q.dead"])):
        figures = taken(FigureReader(world.container, most))
        (found,) = (one for one in figures.conditions if one.count)
        assert [one.name for one in found.worst] == named


def test_no_queue_is_looked_for_in_all_settings() -> None:
    """With ten thousand of each that took a minute of the event loop."""
    looked: list[object] = []

    class Counted(dict[str, QueueSettings]):
        def values(self) -> Any:
            looked.append(self)
            return super().values()

    world = World(Settings(queues=Counted({f"q{number}": QueueSettings() for number in range(10)})))
    looked.clear()
    assert len(taken(FigureReader(world.container, 10)).queues) == 10
    assert not looked


# -- the pages


HTTP: Final = {"http": Address("127.0.0.1", 0)}


async def asked(broker: Broker, page: str) -> tuple[int, bytes]:
    def get() -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://{broker.http}/{page}", timeout=WAIT_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    return await asyncio.to_thread(get)


def sql_store(broker: Broker) -> SqlStore:
    """Its store, as what it is."""
    assert isinstance(broker._store, SqlStore)
    return broker._store


@pytest.mark.slow
@on_a_broker(config=HTTP)
async def test_every_metric_is_told_with_its_attributes(broker: Broker) -> None:
    broker.container.resource.create("orders").paused = "somebody"
    broker.container.resource.settle()
    broker.flush()
    await until(lambda: sql_store(broker).groups)

    async def families() -> dict[str, Sample]:
        status, text = await asked(broker, "metrics")
        assert status == 200
        told = text_string_to_metric_families(text.decode())
        return {sample.name: sample for family in told for sample in family.samples}

    expected = {name: metric for metric in METRICS if not metric.name.endswith("oldest.age") for name in metric.series}
    async with asyncio.timeout(WAIT_S):  # the loop is looked at twice in a second, and queues every five seconds
        while (found := await families()).keys() != expected.keys():  # noqa: ASYNC110 — as a scraper does
            await asyncio.sleep(0.05)
    for name, metric in expected.items():
        assert set(found[name].labels) - {"le"} == metric.labels, name
    assert {prometheus_label(STATE)} == set(found["xabridge_broker_branches"].labels)


HELD: Final = threading.Event()
HELD.set()


def held(step: Step) -> None:
    """The store writes when it is let."""
    if step is Step.BEFORE_WRITE:
        HELD.wait(WAIT_S)


@on_a_broker(hook=held, config=HTTP)
async def test_it_is_ready_while_the_store_takes_changes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH_S", 0.0)
    status, body = await asked(broker, "ready")
    assert (status, json.loads(body)) == (
        200,
        {"ready": True, "trouble": "", "full": False, "unreadable": 0, "conditions": {}},
    )
    monkeypatch.setattr(readiness, "WRITE_S", 0.05)
    sql_store(broker)._open.writer._pace.took(10.0)  # so that a thread forces, and the loop turns meanwhile
    HELD.clear()

    try:
        for _ in range(2):  # the second one waits for the same change
            status, body = await asked(broker, "ready")
            assert (status, json.loads(body)["ready"]) == (503, False)
            assert "did not force a change" in json.loads(body)["trouble"]
        assert (await asked(broker, "live"))[0] == 200
    finally:
        HELD.set()
    monkeypatch.setattr(readiness, "WRITE_S", WAIT_S)
    async with asyncio.timeout(WAIT_S):
        while (await asked(broker, "ready"))[0] != 200:  # noqa: ASYNC110 — as a probe does
            await asyncio.sleep(0.01)


async def held_at(broker: Broker) -> dict[str, int]:
    """The conditions that `/ready` counts."""
    conditions: dict[str, int] = json.loads((await asked(broker, "ready"))[1])["conditions"]
    return conditions


@on_a_broker(config=HTTP)
async def test_a_full_store_is_a_condition(broker: Broker) -> None:
    assert await held_at(broker) == {}
    sql_store(broker)._open.writer._refused(1, 1 << 60, StoreFull("no disk has room for it"))
    assert await held_at(broker) == {STORE_FULL.name: 1}


@pytest.mark.parametrize(("days", "expected"), [(14.0, {}), (1e6, {CERTIFICATE_ENDS.name: 1})])
def test_a_certificate_that_ends_soon_is_a_condition(tmp_path: Path, days: float, expected: dict[str, int]) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, tls=True, config=HTTP, certificate_days=days) as broker:
            assert await held_at(broker) == expected

    asyncio.run(scenario())


def make_certificate(folder: Path, days: int) -> None:
    """A certificate and its key, in the place of those that are there."""
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=broker")
    files = ("-keyout", folder / "new.key", "-out", folder / "new.pem")
    subprocess.run(("openssl", "req", "-x509", *kind, *files, "-days", str(days)), capture_output=True, check=True)
    for end in ("key", "pem"):
        (folder / f"new.{end}").replace(folder / f"broker.{end}")


def test_a_certificate_that_was_replaced_is_no_condition_any_more(tmp_path: Path) -> None:
    """Without a peer that connects: the broker looks whether the files have changed."""
    make_certificate(tmp_path, 3)
    listen = Address("127.0.0.1", 0)
    config = BrokerConfig(
        listen_tls=(listen,), http=listen, store=f"sqlite:///{tmp_path}/store", certificate=tmp_path / "broker.pem",
        key=tmp_path / "broker.key",
    )  # fmt: skip

    async def scenario() -> None:
        broker = Broker(config)
        await broker.start()
        assert await held_at(broker) == {CERTIFICATE_ENDS.name: 1}
        make_certificate(tmp_path, 30)
        assert await held_at(broker) == {}
        await broker.close()

    asyncio.run(scenario())


@on_a_broker(config=HTTP)
async def test_a_broker_that_stands_by_is_live_and_not_ready(broker: Broker) -> None:
    standby = Broker(replace(broker.config, standby=True))
    starting = asyncio.create_task(standby.start())
    await until(lambda: standby.http)
    assert (await asked(standby, "live"))[0] == 200
    status, body = await asked(standby, "ready")
    assert (status, json.loads(body)["ready"]) == (503, False)
    assert "another process" in json.loads(body)["trouble"]
    assert json.loads(body)["conditions"] == {}, "it has no lease to lose"
    assert (await asked(standby, "metrics"))[0] == 200
    standby.stop()
    await asyncio.wait_for(starting, WAIT_S)
    assert not standby.addresses


def over(url: str, *, standby: bool) -> BrokerConfig:
    """A broker over PostgreSQL."""
    http = Address("127.0.0.1", 0)
    return BrokerConfig(
        listen=(http,), store=url, http=http, standby=standby, settings=Settings(lease_s=LEASE_S), anonymous=True
    )


@pytest.mark.slow
def test_probes_are_answered_while_the_lease_of_a_dead_process_runs_out(postgres: Postgres) -> None:
    url = postgres.create_database()
    dead = SqlStore(url, Loop().deliver, lease_s=LEASE_S)
    dead.open()
    assert dead._opened is not None
    assert dead._opened.lease is not None
    dead._opened.lease._closing.set()  # it renews no more, and gives nothing back

    async def scenario() -> None:
        broker = Broker(over(url, standby=False))
        starting = asyncio.create_task(broker.start())
        answers = []
        while not starting.done():
            await asyncio.sleep(0.05)
            answers.append((await asked(broker, "live"))[0])
        await starting
        assert len(answers) > LEASE_S / 0.1 / 4  # it waited, and did not hold up the pages
        assert set(answers) == {200}
        await broker.close()

    asyncio.run(scenario())
    dead.close()


@pytest.mark.slow
@in_loop
async def test_a_lease_that_runs_out_is_a_condition(postgres: Postgres) -> None:
    broker = Broker(over(postgres.create_database(), standby=False))
    await broker.start()
    assert await held_at(broker) == {}
    lease = sql_store(broker)._open.lease
    assert lease is not None
    lease._closing.set()  # it renews no more
    async with asyncio.timeout(WAIT_S):
        while LEASE_LOST.name not in await held_at(broker):  # noqa: ASYNC110 — as a probe does
            await asyncio.sleep(0.05)
    await broker.close()


@pytest.mark.slow
@in_loop
async def test_one_that_stands_by_waits_for_the_server(
    postgres_server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    postgres_server.start()
    url = postgres_server.create_database()
    postgres_server.stop()
    with pytest.raises(StoreAway, match="can't be opened"):
        await Broker(over(url, standby=False)).start()
    broker = Broker(over(url, standby=True))
    starting = asyncio.create_task(broker.start())
    await until(lambda: "standing by: the store can't be opened" in caplog.text)
    assert (await asked(broker, "live"))[0] == 200
    assert (await asked(broker, "ready"))[0] == 503
    await asyncio.to_thread(postgres_server.start)
    await asyncio.wait_for(starting, WAIT_S)
    assert (await asked(broker, "ready"))[0] == 200
    await broker.close()


@in_loop
async def test_ready_again_and_again_is_one_force_and_leaves_no_trace(tmp_path: Path) -> None:
    for asks in (10, 1):
        async with serving(tmp_path, config=HTTP) as broker:
            for _ in range(asks):
                assert (await asked(broker, "ready"))[0] == 200
            assert not broker.container.resource.queues
            assert sql_store(broker).groups <= 2


@in_loop
async def test_without_the_extra_there_are_probes_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    with pytest.raises(exposition.NoExporter):
        exposition.Exposition()
    async with serving(tmp_path, config=HTTP) as broker:
        assert "[metrics]'" in broker.monitoring.notice
        status, body = await asked(broker, "metrics")
        assert (status, b"[metrics]'" in body) == (501, True)
        assert (await asked(broker, "ready"))[0] == 200


@pytest.mark.slow
def test_nothing_is_loaded_where_nobody_watches() -> None:
    assert not [name for name in loaded_by("import dtx.broker.command") if "opentelemetry" in name]


@pytest.mark.slow
def test_a_broker_in_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its health by the command, its lines as JSON, and a port that is taken."""
    flags = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json")
    broker = BrokerProcess(tmp_path, *flags)
    broker.start()

    try:
        assert broker._process is not None
        assert broker._process.stdout is not None
        page = json.loads(broker._process.stdout.readline())["msg"].partition("/live")[0]
        health = [sys.executable, "-m", "xabridge.cli", "health", f"{page}/ready"]
        done = subprocess.run(health, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert main(["health", f"{page}/live"]) == 0
        capsys.readouterr()
        assert main(["health", f"{page}/x"]) == 1
        assert capsys.readouterr().out == "there is /live /ready /metrics\n"
        port = page.rpartition(":")[2]
        other = BrokerProcess(tmp_path / "other", "--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}")
        (tmp_path / "other").mkdir()
        with pytest.raises(RuntimeError, match=f"http 127.0.0.1:{port}: Address already in use"):
            other.start()
        for said in broker.errors().splitlines():
            assert json.loads(said)["level"] == "WARNING"
    finally:
        assert broker.stop() == 0
    assert main(["health", f"{page}/live"]) == 4
    assert "could not be reached" in capsys.readouterr().err
