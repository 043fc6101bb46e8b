"""App: what an application declares, and what runs it.

    app = App("xabridge.toml")

    @app.consumer("orders", workers=4)
    def handle(order: Order, tx: Shop) -> None:
        tx.shop.execute(insert(orders).values(**order.model_dump()))
        tx.send("invoices", Invoice(order=order.number))

    app.run()        # until SIGTERM or SIGINT; or `xabridge run module:app`, or `with app:`, `async with app:`

Nothing is read, connected or locked before it runs: a module that declares an App can be imported by tests, by a web
server's parent process, by a command. What runs is `tm.manager` and `tm.consumer`; the App makes them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar, Unpack, cast, overload

from tm import (
    Configuration,
    ConfigurationError,
    Propagation,
    ProtocolMisuse,
    Transaction,
    TransactionManager,
)
from tm.consumer.signals import StopSignals
from tm.options import check
from tm.propagation.call import OPTIONS as TRANSACTIONAL
from xabridge.app.codec import Codecs
from xabridge.app.declarations import Declarations, Router, check_function
from xabridge.app.tx import Tx

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from typing_extensions import TypeVar as DefaultTypeVar

    from tm import Consumer, Health
    from tm.options import Option
    from xabridge.app.codec import Codec


F = TypeVar("F", bound="Callable[..., Any]")
if TYPE_CHECKING:
    Tx_co = DefaultTypeVar("Tx_co", bound=Tx, default=Tx, covariant=True)
else:
    Tx_co = TypeVar("Tx_co", covariant=True)


class AppOptions(TypedDict, total=False):
    """The keyword arguments of an App."""

    codecs: Mapping[str, Codec] | None


class _ConfigurationOption:
    """A configuration, or where it stands."""

    expected = "the path of a file, or a Configuration"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str | Path | Configuration) and value != ""

    def meant(self, value: Any) -> Any:
        return value.decode(errors="replace") if isinstance(value, bytes) else None


class _CodecsOption:
    """Codecs of an application's own."""

    expected = 'a dict of codecs by their content types, as in {"text/plain": Lines()}'

    def fits(self, value: Any) -> bool:
        return value is None or (
            isinstance(value, Mapping)
            and all(isinstance(kind, str) for kind in value)
            and all(hasattr(codec, "encode") and hasattr(codec, "decode") for codec in value.values())
            and not any(isinstance(codec, str | type) for codec in value.values())
        )

    def meant(self, value: Any) -> None:
        del value


class _TransactionOption:
    """The class of an application's transactions."""

    expected = "a subclass of Tx"

    def fits(self, value: Any) -> bool:
        return isinstance(value, type) and issubclass(value, Tx)

    def meant(self, value: Any) -> Any:
        return type(value) if isinstance(value, Tx) else None


OPTIONS: Final[dict[str, Option]] = {
    "configuration": _ConfigurationOption(),
    "transaction": _TransactionOption(),
    "codecs": _CodecsOption(),
}


class App(Declarations, Generic[Tx_co]):
    """An application. `configuration` is the file, which is read when it runs, or what was read from one. `transaction`
    is the class of its transactions, a subclass of `Tx` with the types of the resources: what `begin` and `tx` give.
    Handlers may declare others, whose resources its transactions have too. `codecs` maps content types to codecs of
    your own."""

    def __init__(
        self,
        configuration: str | Path | Configuration = "xabridge.toml",
        *,
        transaction: type[Tx_co] = Tx,  # type: ignore[assignment]  # what Tx_co is by default
        **settings: Unpack[AppOptions],
    ) -> None:
        check("App", OPTIONS, {"configuration": configuration, "transaction": transaction, **settings})
        self.configuration = configuration
        self.codecs = Codecs(settings.get("codecs"))
        super().__init__(self.codecs)
        self.transaction_classes[transaction] = None
        self._lifespans: list[Callable[[], Any]] = []

        self._lock = threading.Lock()
        self._manager: TransactionManager[Tx_co] | None = None
        self._running: list[Consumer] = []
        self._stopper: StopSignals | None = None
        self._started = ExitStack()
        self._astarted = AsyncExitStack()
        self._failure: BaseException | None = None
        self.is_under_test = False
        """Whether what it is connected to was made for a test."""

    def __repr__(self) -> str:
        given = self.configuration
        what = f"node {given.node}" if isinstance(given, Configuration) else str(given)
        consumers = ", ".join(declared.name for declared in self.consumers) or "no consumer"
        runs = "running" if self._running else "connected" if self._manager is not None else "not running"
        return f"<App, {what}, {consumers}, {runs}>"

    # --- declaring --------------------------------------------------------------------------------------------

    def include(self, router: Router) -> None:
        """Makes what a Router has declared a part of this App. ConfigurationError: another App has it already, or two
        consumers have one name."""
        if not isinstance(router, Router):
            raise ConfigurationError(f"include: {router!r} is no Router")
        router.join(self)

    @overload
    def transactional(self, function: F) -> F: ...

    @overload
    def transactional(
        self,
        function: None = None,
        *,
        propagation: Propagation = Propagation.REQUIRED,
        rollback_on: tuple[type[BaseException], ...] = (BaseException,),
        timeout_s: float | None = None,
        retries: int = 0,
    ) -> Callable[[F], F]: ...

    def transactional(self, function: Callable[..., Any] | None = None, **settings: Any) -> Any:
        """Declares a function that runs in a transaction, as `TransactionManager.transactional` does; it needs the App
        to run when it is called."""
        check("transactional", TRANSACTIONAL, settings)
        if function is None:
            return lambda function: self.transactional(function, **settings)
        check_function("transactional", function)
        return _Transactional(self, function, settings).wrapped()

    def lifespan(self, function: F) -> F:
        """Declares a generator function that yields once: what stands before the `yield` runs before any consumer
        starts, what stands behind it when all have stopped. An asynchronous one needs `async with app`, or `run`."""
        if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
            raise ConfigurationError(f"{function.__qualname__}: a lifespan is a generator function, which yields once")
        self._lifespans.append(function)
        return function

    def add_transaction_class(self, kind: type[Tx]) -> None:
        """Makes transactions instances of this class too, beside those that the handlers declare; for frameworks."""
        self.transaction_classes[kind] = None

    @property
    def dependency_overrides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """What is made instead of what: for tests, `app.dependency_overrides[make_client] = FakeClient`."""
        return self.environment.overrides

    # --- transactions -----------------------------------------------------------------------------------------

    @property
    def manager(self) -> TransactionManager[Tx_co]:
        """The transaction manager; ProtocolMisuse while the App does not run."""
        if self._manager is None:
            raise ProtocolMisuse(
                "the App does not run: call it in `with app:`, or let app.run() or xabridge run start it"
            )
        return self._manager

    @property
    def is_connected(self) -> bool:
        """Whether it has a transaction manager: it runs, or a test has connected it."""
        return self._manager is not None

    @property
    def tx(self) -> Tx_co:
        """The transaction that the calling thread or task is in; ProtocolMisuse if it is in none."""
        return self.manager.get_transaction()

    def current_or_none(self) -> Tx_co | None:
        """The same, or None where there is none: so `take_part(engine, app, "shop")` takes an App for a manager, before
        it runs."""
        manager = self._manager
        return None if manager is None else manager.current_or_none()

    def health(self) -> dict[str, Health]:
        """How each consumer is, by its name, for a probe: its queue, unless it was given another one. ProtocolMisuse
        while the App does not run."""
        if not self._running:
            raise ProtocolMisuse("the App does not run, or has no consumers: there is nothing to tell of their health")
        running = set(self._running)
        return {one.name: one.health() for one in self.consumers if one.live in running}

    def begin(self, timeout_s: float | None = None) -> Tx_co:
        """Begins a transaction: `with app.begin() as tx`, `async with app.begin() as tx`."""
        return self.manager.begin(timeout_s)

    @property
    def transaction(self) -> type[Tx_co]:
        """The class of its transactions: its own, and those that its handlers declare, in one."""
        declared = [one for one in self.transaction_classes if issubclass(one, Tx)]
        foreign = [one for one in self.transaction_classes if not issubclass(one, Tx) and one is not Transaction]
        if foreign:
            names = ", ".join(one.__qualname__ for one in foreign)
            raise ConfigurationError(
                f"{names}: the class of an App's transactions is a subclass of Tx, not of Transaction"
            )
        bases = [one for one in declared if not any(other is not one and issubclass(other, one) for other in declared)]
        return cast("type[Tx_co]", type("AppTx", tuple(bases), {"codecs": self.codecs}))

    # --- running ----------------------------------------------------------------------------------------------

    def connect(
        self, make: Callable[[type[Tx_co]], TransactionManager[Tx_co]] | None = None
    ) -> TransactionManager[Tx_co]:
        """Opens the transaction manager, and starts no consumer. `make` makes it for the class of transactions that the
        handlers declare; otherwise the configuration says what it is."""
        with self._lock:
            if self._manager is not None:
                raise ProtocolMisuse(
                    "the App is connected already, as by a request, a lifespan or another TestApp: end that first, or "
                    "call app.disconnect()"
                )
            self.is_under_test = make is not None
            if make is not None:
                self._manager = make(self.transaction)
            else:
                self._manager = TransactionManager.from_config(self.configuration, transaction=self.transaction)
            return self._manager

    def disconnect(self) -> None:
        """Stops what runs, for 10 s at most, and closes the transaction manager."""
        with self._lock:
            manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()

    def run(self, when_started: Callable[[], object] = lambda: None) -> None:
        """Works until SIGTERM or SIGINT (in the main thread), `stop` in another, or the failure of a consumer, which is
        raised. Then what runs is finished, each consumer's `shutdown_s` at most. Coroutine functions run in one event
        loop, which is this thread's. `when_started` is called once it works."""
        with StopSignals() as stopper:
            self._stopper = stopper
            try:
                if self._has_coroutines:
                    asyncio.run(self._arun(stopper, when_started))
                else:
                    with self:
                        when_started()
                        stopper.wait()
            finally:
                self._stopper = None
        if self._failure is not None:
            raise self._failure

    async def _arun(self, stopper: StopSignals, when_started: Callable[[], object]) -> None:
        async with self:
            when_started()
            await asyncio.to_thread(stopper.wait)

    @property
    def _has_coroutines(self) -> bool:
        return any(declared.handler.is_async for declared in self.consumers) or any(
            map(inspect.isasyncgenfunction, self._lifespans)
        )

    def start(self) -> None:
        """Connects, and starts every consumer in the background."""
        self._check()
        with ExitStack() as started:
            self._connected(started)
            self.enter_lifespans(started)
            for live in self._running:
                started.callback(live.stop)
                live.start()
            self._start_schedules(started)
            self._started = started.pop_all()

    def stop(self) -> bool:
        """Finishes what runs and begins nothing, each consumer's `shutdown_s` at most, and closes the manager; whether
        everything was finished. What was not is rolled back."""
        self._wake()
        running = self._ask_to_stop()
        finished = [live.stop() for live in running]
        self._note_failure(running)
        started, self._started = self._started, ExitStack()
        started.close()
        return all(finished)

    def enter_lifespans(self, started: ExitStack) -> None:
        """Runs the lifespans up to their `yield`, and the rest with `started`."""
        for lifespan in self._lifespans:
            if inspect.isasyncgenfunction(lifespan):
                raise ConfigurationError(
                    f"{lifespan.__qualname__} is awaited: use `async with` for this App, or run it"
                )
            started.enter_context(contextmanager(lifespan)())

    async def aenter_lifespans(self, started: AsyncExitStack) -> None:
        """`enter_lifespans` for coroutines."""
        for lifespan in self._lifespans:
            if inspect.isasyncgenfunction(lifespan):
                await started.enter_async_context(asynccontextmanager(lifespan)())
            else:
                started.enter_context(contextmanager(lifespan)())

    def _check(self) -> None:
        for declared in self.consumers:
            declared.handler.check_middlewares()

    def _connected(self, started: ExitStack) -> None:
        """Makes the consumers, over a manager that is closed with `started`."""
        self._failure = None
        manager = self.connect()
        started.callback(self.disconnect)
        self._running = [declared.connect(manager) for declared in self.consumers]
        for live in self._running:
            live.when_failed = self._wake

    def _start_schedules(self, started: ExitStack) -> None:
        if self.schedules:
            from xabridge.app.scheduler import Scheduler  # noqa: PLC0415 — loads SQLAlchemy

            scheduler = Scheduler(self.manager, self.schedules)
            scheduler.start()
            started.callback(scheduler.stop)

    def _ask_to_stop(self) -> list[Consumer]:
        running, self._running = self._running, []
        for live in running:
            live.ask_to_stop()
        return running

    def _note_failure(self, running: list[Consumer]) -> None:
        self._failure = next((live.failure for live in running if live.failure is not None), None)

    def _wake(self) -> None:
        stopper = self._stopper
        if stopper is not None:
            stopper.wake()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        """Starts it. Handlers that are coroutine functions run in the running event loop."""
        self._check()
        async with AsyncExitStack() as started:
            connected = ExitStack()
            started.push_async_callback(asyncio.to_thread, connected.close)
            await asyncio.to_thread(self._connected, connected)
            await self.aenter_lifespans(started)
            for live in self._running:
                await started.enter_async_context(live)
            scheduled = ExitStack()
            self._start_schedules(scheduled)
            started.push_async_callback(asyncio.to_thread, scheduled.close)
            self._astarted = started.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._wake()
        running = self._ask_to_stop()
        await asyncio.gather(*(live.__aexit__(None, None, None) for live in running))
        self._note_failure(running)
        started, self._astarted = self._astarted, AsyncExitStack()
        await started.aclose()


class _Transactional:
    """A function that is decorated for the manager of the moment."""

    def __init__(self, app: App, function: Callable[..., Any], settings: dict[str, Any]) -> None:
        self._app = app
        self._function = function
        self._settings = settings
        self._made: tuple[TransactionManager[Any], Callable[..., Any]] | None = None

    def wrapped(self) -> Callable[..., Any]:
        """The decorated function."""

        @functools.wraps(self._function)
        def call(*arguments: Any, **named: Any) -> Any:
            return self._current()(*arguments, **named)

        if inspect.iscoroutinefunction(self._function):
            return _as_coroutine_function(call, self._function)
        return call

    def _current(self) -> Callable[..., Any]:
        manager = self._app.manager
        made = self._made
        if made is None or made[0] is not manager:
            made = self._made = manager, manager.transactional(self._function, **self._settings)
        return made[1]


def _as_coroutine_function(call: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*arguments: Any, **named: Any) -> Any:
        return await call(*arguments, **named)

    return run


def find_app(reference: str) -> App:
    """The App that `reference` names. ConfigurationError: the name is wrong. Errors of the module itself are raised."""
    module, separator, name = reference.partition(":")
    if not module or not separator or not name:
        raise ConfigurationError(f"{reference}: expected module:name, as shop:app")

    try:
        spec = find_spec(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{reference}: {error}; is this the folder that it is in?") from error
    if spec is None:
        raise ConfigurationError(f"{reference}: there is no module {module}; is this the folder that it is in?")
    loaded = import_module(module)
    app = getattr(loaded, name, None)
    if app is None:
        apps = [f"{module}:{one}" for one, value in vars(loaded).items() if isinstance(value, App)]
        there = f"it has {', '.join(apps)}" if apps else f"it has no App (it is {loaded.__file__ or 'a folder'})"
        raise ConfigurationError(f"{reference}: {module} has no {name}; {there}")
    if not isinstance(app, App):
        raise ConfigurationError(f"{reference}: {name} is a {type(app).__qualname__}, and no App")
    return app
