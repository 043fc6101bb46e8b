"""TestApp: an App under test, with a broker in the process and SQLite beside it.

    def test_an_order_becomes_an_invoice():
        with TestApp(app) as test:
            test.deliver("orders", Order(number=1, customer="Ada"))
            test.assert_sent("invoices", Invoice(order=1))

Brokers of the configuration are one `TestBroker`; the database is a file in memory (`/dev/shm`, where there is one),
in mode "decider", or with `postgres=True` a PostgreSQL in the mode of the configuration. No worker runs: `deliver` is
one delivery after the other, in the test's thread, so that an exception of a handler comes out where the test is. What
is decided, committed, rolled back and recovered is real.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError

from dtx.broker.queues.topics import fits
from rm_amqp.message import read
from tm import Configuration, ConfigurationError, ResourceConfig, TransactionManager, configuration_from
from tm.consumer.failures import Failures
from tm.consumer.one_pass import one_pass
from tm.consumer.sharing import Sharing
from tm.consumer.worker import TaskCalls, ThreadCalls, Worker
from tm.log.factory import open_log
from tm.resources import find_factory
from xa import Code, XaMisuse
from xa.coroutines import drive
from xa.topics import SUBSCRIPTION, TOPIC, is_topic, topic_of
from xabridge.app.scheduler import Scheduler
from xabridge.testing.faults import FailingLog, Faults, Killed, failing
from xabridge.testing.in_process import TestBroker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from sqlalchemy import Engine

    from rm_amqp import Message
    from tm import Consumer, Transaction
    from tm.consumer.one_pass import SinglePassPorts
    from xabridge.app import App
    from xabridge.app.codec import MessageFields
    from xabridge.app.schedule import DeclaredSchedule
    from xabridge.testing.faults import At, KilledAt

NODE: Final = "test"
BROKERS: Final = ("amqp", "amqps", "dynamic+amqp", "dynamic+amqps", "amqp010", "amqp010s", "openwire", "openwire+ssl")
POSTGRES: Final = ("postgres", "postgresql")
MEMORY: Final = "/dev/shm"  # noqa: S108 — a folder with a name of its own is made in it


def _place(queue: str) -> str:
    """Where the messages of a queue are; of a topic, those that the App has sent there."""
    return f"{queue}{SUBSCRIPTION}{NODE}" if is_topic(queue) else queue


def _goes_to(topic: str, source: str) -> bool:
    """Whether the messages of a topic go to a subscription."""
    pattern = topic_of(source)
    if pattern is None or not is_topic(topic):
        return False
    return fits(pattern.removeprefix(TOPIC).split("."), topic.removeprefix(TOPIC).split("."))


class TestApp:
    """An App that is connected while this is entered. With `postgres=True`, what is PostgreSQL in the configuration is
    PostgreSQL here: an embedded server, which the process starts once, and a database for this test. `resources` says
    what to use instead of a broker in the process or SQLite: TestApp(app, resources={"shop": "postgresql://…"})."""

    __test__ = False  # for pytest: it is no test

    def __init__(
        self, app: App, resources: Mapping[str, str | ResourceConfig] | None = None, *, postgres: bool = False
    ) -> None:
        self.app = app
        self._postgres = postgres
        self.broker = TestBroker()
        self._given = dict(resources or {})
        self._faults = Faults()
        self._types: dict[str, type] = {}
        self._open = ExitStack()
        self._aopen = AsyncExitStack()
        self._configuration: Configuration
        self.folder: Path
        """Where its files are, until it is left."""
        self._live: dict[str, Consumer] = {}
        self._engines: dict[str, Engine] = {}
        self._in_sqlite: list[str] = []

    # --- what a test does ---------------------------------------------------------------------------------------

    def deliver(self, queue: str, *values: Any, **more: Unpack[MessageFields]) -> None:
        """Sends `values` to a queue, and has its handler take what waits there, one delivery after the other, until
        nothing does. What a delivery fails with is raised: the message waits again then. `more` are fields of the
        messages. A consumer that has a name of its own is meant by that, instead of the queue. Of a topic, the handlers
        of all of its subscriptions do so, one after the other."""
        self._put(queue, values, more)
        for source in self._sources(queue):
            while self._may_receive(source):
                passed = asyncio.run(self._pass(source)) if self._is_async(source) else drive(self._pass(source))
                if not self._has_received(passed):
                    break

    async def adeliver(self, queue: str, *values: Any, **more: Unpack[MessageFields]) -> None:
        """`deliver` for tests that are coroutines; handlers that are run in the test's event loop."""
        await asyncio.to_thread(self._put, queue, values, more)
        for source in self._sources(queue):
            while self._may_receive(source):
                if self._is_async(source):
                    passed = await self._pass(source)
                else:
                    passed = await asyncio.to_thread(drive, self._pass(source))
                if not self._has_received(passed):
                    break

    def sent(self, queue: str, wanted: type | None = None) -> list[Any]:
        """The bodies of the messages that are in a queue, or that the App has sent to a topic: as the types that were
        sent there, or as `wanted`."""
        kind = wanted or self._types.get(queue, object)
        return [self.app.codecs.read(message, kind) for message in self.messages(queue)]

    def messages(self, queue: str) -> list[Message]:
        """The messages that are in a queue: those that a consumer can have, in their order, and then those whose time
        has not come, the next one first."""
        with self._faults.paused(), self.manager.begin() as tx:
            found = list(tx[self._resource_of(queue)].browse(_place(queue)))
        for later in self.broker.later(_place(queue)):
            message = read(later.octets)
            message.delivery_count = later.deliveries
            found.append(message)
        return found

    def later(self, queue: str) -> list[float]:
        """In how many seconds the messages of a queue come whose time has not come, the next one first: those that were
        sent with a delay, and those that are to be tried again later."""
        return [later.in_s for later in self.broker.later(_place(queue))]

    def assert_sent(self, queue: str, *values: Any) -> None:
        """Exactly these are in a queue, in this order."""
        found = self.sent(queue, type(values[0]) if values else None)
        if found != list(values):
            raise AssertionError(f"{queue} has {found!r}, expected {list(values)!r}")

    def waiting(self, queue: str) -> int:
        """How many messages are in a queue, those included whose time has not come."""
        return self.broker.waiting(_place(queue))

    def dead(self, queue: str) -> list[str]:
        """Why messages of a queue are dead letters, one reason for each."""
        settings = self._consumer(queue).settings
        return [
            str((message.annotations or {}).get("x-opt-dead-reason", ""))
            for message in self.messages(settings.dead_letters)
        ]

    def engine(self, name: str) -> Engine:
        """A SQLAlchemy engine for the database `name`, for tables and rows that the test needs, and to look at them."""
        if name not in self._engines:
            config = self._configuration.resources[name]
            url = config.url if isinstance(config, ResourceConfig) else config
            made = make_url(url.removeprefix("decider+"))
            if made.drivername in ("postgres", "postgresql"):
                made = made.set(drivername="postgresql+psycopg")  # as the resource manager has it
            engine = self._engines[name] = create_engine(made)
            self._open.callback(engine.dispose)
        return self._engines[name]

    def run_schedule(self, schedule: DeclaredSchedule[..., Any], at: datetime) -> None:
        """What a process does about a schedule at a time: it runs it if it is due, and notes when it is due next. The
        first time, it only notes that."""
        try:
            Scheduler(self.manager, [schedule], at.timestamp).run_if_due(schedule)
        except Exception as error:
            if not self._faults.is_dead:
                raise
            self.restart()
            raise Killed("the process was killed, as the test wants; another one has recovered") from error

    def advance(self, seconds: float) -> None:
        """Moves the time of the broker and of the consumers: what expires by then has expired, and what is for
        later can be had."""
        self.broker.advance(seconds)

    def fail(self, resource: str, at: At) -> None:
        """The resource fails, once: "start", it can't be reached; "prepare", it votes no; "commit", the connection is
        lost when it is to commit, and the outcome is unknown until `recover`."""
        self.manager.resource(resource)
        self._faults.want(resource, at)

    def kill(self, at: KilledAt, *, really: bool = False) -> None:
        """The next transaction that commits is cut off, "before the decision" or "after the decision", as if its
        process were killed. `deliver` raises Killed. By then another process has started, and recovered. With
        `really=True` this process gets SIGKILL there: for a program that a test starts."""
        self._faults.want_kill(at, really=really)

    def recover(self) -> None:
        """What was lost can be reached again, and a recovery pass finishes what is in doubt."""
        self._faults.heal()
        self.manager.recover()

    def restart(self) -> None:
        """Another process takes the place of this one: a new transaction manager, which recovers."""
        self._faults.revive()
        self.app.disconnect()
        self._connect()
        self.recover()

    @property
    def manager(self) -> TransactionManager[Any]:
        """The transaction manager of the App."""
        return self.app.manager

    # --- deliveries ---------------------------------------------------------------------------------------------

    def _put(self, queue: str, values: tuple[Any, ...], more: MessageFields) -> None:
        settings = self._live[self._sources(queue)[0]].settings
        address = queue if is_topic(queue) else settings.queue
        if values:
            with self._faults.paused(), self.manager.begin() as tx:
                for value in values:
                    tx[settings.resource].send(address, self.app.codecs.message(value, **more))

    def _may_receive(self, queue: str) -> bool:
        """Whether a delivery could bring something. A queue at a broker that the test brings is asked."""
        settings = self._consumer(queue).settings
        return settings.resource in self._given or self.broker.available(settings.queue) > 0

    async def _pass(self, queue: str) -> SinglePassPorts:
        consumer = self._consumer(queue)
        job = consumer.job
        calls = TaskCalls(asyncio.Event()) if consumer.is_async else ThreadCalls(threading.Event())
        sharing = Sharing(job.settings, job.timeout_s, lambda: 0.0, usual_s=0.0)
        passing = partial(one_pass, Worker(0, job, calls, sharing), job.settings, job.timeout_s)
        return await (calls.apart(passing) if isinstance(calls, TaskCalls) else passing())

    def _has_received(self, passed: SinglePassPorts) -> bool:
        """Whether there was anything; raises what the delivery has failed with."""
        if self._faults.is_dead:
            self.restart()
            raise Killed("the process was killed, as the test wants; another one has recovered") from passed.error
        if passed.error is not None:
            if self._in_sqlite and _may_be_of_sqlite(passed.error):
                passed.error.add_note(
                    f"{' and '.join(self._in_sqlite)}: SQLite in this test; for what only PostgreSQL has, as "
                    "`.asyncio`, `.psycopg` and its own SQL: TestApp(app, postgres=True)"
                )
            raise passed.error
        return passed.has_received

    def _sources(self, queue: str) -> list[str]:
        """The names of the consumers that get the messages of a queue or topic, at least one."""
        found = [name for name, live in self._live.items() if name == queue or _goes_to(queue, live.settings.queue)]
        if not found:
            known = ", ".join(sorted(self._live)) or "none"
            raise ConfigurationError(f"{queue}: the App has no consumer of this name (it has: {known})")
        return found

    def _consumer(self, queue: str) -> Consumer:
        source, *others = self._sources(queue)
        if others:
            raise ConfigurationError(f"{queue}: the App has several consumers: {', '.join((source, *others))}")
        return self._live[source]

    def _is_async(self, queue: str) -> bool:
        return self._consumer(queue).is_async

    def _resource_of(self, queue: str) -> str:
        own = (live.settings.resource for live in self._live.values() if live.settings.queue == queue)
        return next(own, self._messaging[0])

    # --- life ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        manager = self.app.connect(self._make_manager)
        self._live = {}
        for declared in self.app.consumers:
            declared.handler.check_middlewares()
            live = self._live[declared.name] = declared.connect(manager)
            live.job.failures = Failures(lambda: self.broker.clock.wall_ms() / 1000)
            if topic_of(declared.settings.queue) is not None:
                self._subscribe(declared.settings.queue, declared.settings.resource)

    def _subscribe(self, source: str, resource: str) -> None:
        """Makes the subscription of a consumer, as its first worker does."""
        if resource not in self._given:
            self.broker.subscribe(source)
            return
        with self._faults.paused(), self.manager.begin() as tx:
            for _ in tx[resource].browse(source):
                break

    def _make_manager(self, transaction: type[Transaction]) -> TransactionManager[Any]:
        made = self._configuration
        log = None if made.log is None else FailingLog(open_log(made.log, made.node), self._faults)
        return TransactionManager(
            made.node, log, made.resources, transaction=self._noting(transaction), timeout_s=made.timeout_s
        )

    def _noting(self, base: type[Any]) -> type[Any]:
        """The class of the App's transactions, which notes the types of what is sent."""
        types = self._types

        def keep(address: str) -> None:
            if is_topic(address):
                self.broker.subscribe(_place(address))

        class Noting(base):  # type: ignore[misc]  # it is the application's
            def send(self, address: str, value: Any, **more: Any) -> None:
                keep(address)
                super().send(address, value, **more)
                types[address] = type(value)

            async def _asend(self, address: str, value: Any, *more: Any) -> None:
                keep(address)
                await super()._asend(address, value, *more)
                types[address] = type(value)

        return Noting

    def _under_test(self, folder: Path, opening: ExitStack) -> Configuration:
        """The App's configuration, with what the test has instead of its brokers and its database."""
        given = self.app.configuration
        configuration = given if isinstance(given, Configuration) else configuration_from(given, None)
        replaced = {
            name: self._replaced(name, config, folder, opening) for name, config in configuration.resources.items()
        }
        decides = [name for name, config in replaced.items() if config.mode == "decider"]
        if len(decides) > 1:
            raise ConfigurationError(
                f"{' and '.join(decides)}: one database can be SQLite, which decides; pass "
                f'postgres=True, or give the others: TestApp(app, resources={{"{decides[1]}": "postgresql://…"}})'
            )

        resources = {
            name: ResourceConfig(config.url, config.mode, failing(name, find_factory(name, config), self._faults))
            for name, config in replaced.items()
        }
        return Configuration(
            NODE, None if decides else f"file://{folder / 'log'}", resources, configuration.timeout_s, decider=None
        )

    def _replaced(self, name: str, config: str | ResourceConfig, folder: Path, opening: ExitStack) -> ResourceConfig:
        given = self._given.get(name)
        if given is not None:
            if not isinstance(given, str | ResourceConfig):
                raise ConfigurationError(f"TestApp, resources: {name} has to be an open string or a ResourceConfig")
            return given if isinstance(given, ResourceConfig) else ResourceConfig(given)
        config = ResourceConfig(config) if isinstance(config, str) else config
        scheme = config.url.partition("://")[0]
        plain = scheme.removeprefix("decider+")
        if plain in BROKERS:
            return ResourceConfig(self.broker.url)
        if self._postgres and plain.partition("+")[0] in POSTGRES:
            from xabridge.testing.postgres import own_database  # noqa: PLC0415 — loads psycopg

            mode = config.mode if plain == scheme else "decider"
            return ResourceConfig(opening.enter_context(own_database()), mode)
        self._in_sqlite.append(name)
        return ResourceConfig(f"sqlite:///{folder / name}.db", "decider")

    @property
    def _messaging(self) -> list[str]:
        """The names of the brokers."""
        return [
            name
            for name, config in self._configuration.resources.items()
            if isinstance(config, ResourceConfig) and config.url.partition("://")[0] in BROKERS
        ]

    def _start(self) -> None:
        with ExitStack() as opening:
            place = MEMORY if os.access(MEMORY, os.W_OK) else None
            folder = Path(opening.enter_context(tempfile.TemporaryDirectory(prefix="xabridge-test-", dir=place)))
            opening.enter_context(self.broker)
            self.folder = folder
            self._configuration = self._under_test(folder, opening)
            opening.callback(self._end)
            self._connect()
            self._open = opening.pop_all()

    def _end(self) -> None:
        """Disconnects the App. A database of the test's own outlives this: what failures have left prepared there would
        hold its rows for good."""
        try:
            if self._faults.may_leave_work:
                self._faults.clear()
                self.restart()
        finally:
            self.app.disconnect()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            opening.callback(self.__exit__, None, None, None)
            self._start()
            self.app.enter_lifespans(self._open)
            opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            opening.push_async_callback(asyncio.to_thread, self.__exit__, None, None, None)
            await asyncio.to_thread(self._start)
            await self.app.aenter_lifespans(opening)
            self._aopen = opening.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._aopen.aclose()


def _may_be_of_sqlite(error: BaseException) -> bool:
    """Whether a handler may have failed because its database is not the one that it was written for."""
    if isinstance(error, AttributeError):
        return error.name in {"psycopg", "pymysql"}
    if isinstance(error, XaMisuse):
        return error.code is Code.XAER_PROTO
    return isinstance(error, DBAPIError) and not isinstance(error, IntegrityError)
