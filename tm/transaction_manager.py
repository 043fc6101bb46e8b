"""TransactionManager: a `Manager` with what applications declare over it: consumers and transactional functions, and
what operators see of it: telemetry, pages over HTTP, and operations by hand.

Those operations are a part that is installed beside it, as the entry point `node` of the group `xabridge.operations`: a
function of the manager that returns `Operations`.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, Unpack, cast, overload

from tm.config import Configuration, configuration_from
from tm.consumer import Consumer
from tm.manager import Manager, Tx_co
from tm.propagation import Propagation, transactional
from tm.resources import ConfigurationError
from tm.telemetry import opentelemetry
from tm.telemetry.node_page import node_page
from tm.telemetry.pages import ObservedManager, Pages, exposition
from tm.telemetry.timelines import Timelines
from tm.transaction import Transaction
from xa.open_string import host_and_port
from xa.secrets import hide, not_set
from xa.telemetry.endpoint import TOKEN_OCTETS, AddressTaken, EndpointThread, PostActions, PrivatePages
from xa.telemetry.exposition import Exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tm.consumer.settings import ConsumerOptions
    from tm.log import DecisionLog
    from tm.manager import Tx
    from tm.recording import Recording
    from tm.resources import ResourceConfig
    from tm.telemetry.recorder import Recorder, Telemetry
    from xa.telemetry.endpoint import Act, Page

OPERATIONS: Final = "xabridge.operations"
F = TypeVar("F", bound="Callable[..., Any]")


class Operations(Protocol):
    """What an operator sees and finishes by hand in a manager that runs, for clients with its tokens."""

    @property
    def pages(self) -> Mapping[str, Page]:
        """What can be looked at, by path."""
        ...

    @property
    def acts(self) -> Mapping[str, Act]:
        """What can be posted to, by path."""
        ...

    def close(self) -> None:
        """Takes no more, and waits for what is under way."""
        ...


class TransactionManager(Manager[Tx_co]):
    """A transaction manager of one node. Safe to use from many threads and tasks.

    `resources` maps names to open strings (URLs) or ResourceConfigs. `log` is a URL ("file:///folder",
    "sqlite:///file", "postgresql://…") or an open DecisionLog; it is left out when a resource decides. `decider` names
    the resource that decides, where more than one could. `telemetry` is what `tm.telemetry.opentelemetry()` makes.
    `transaction` is a subclass of Transaction that has the types of the resources; `begin` gives one of it. `http`
    ("127.0.0.1:9464") says where `/live`, `/ready` and `/metrics` are answered, for as long as the manager is open.
    With `http_token` there is `/node`, too, for clients that send it: live transactions, timelines of the last ones,
    consumers, and what is in doubt. Clients that send `http_act_token` can finish by hand there what is in doubt, as
    with `xabridge recover`.
    """

    _endpoint: EndpointThread | None = None
    _observer: Recorder | None = None
    _private: PrivatePages | None = None
    _operations: Operations | None = None

    def __init__(
        self,
        node: str,
        log: str | DecisionLog | None = None,
        resources: Mapping[str, str | ResourceConfig] | None = None,
        *,
        transaction: type[Tx_co] = Transaction,  # type: ignore[assignment]  # what Tx_co is by default
        timeout_s: float = 60.0,
        decider: str | None = None,
        recovery_interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        background: bool = True,
        telemetry: Telemetry | None = None,
        http: str | None = None,
        http_token: str | None = None,
        http_act_token: str | None = None,
    ) -> None:
        tokens = _checked_tokens(http, http_token, http_act_token)
        self.exposition = exposition() if http is not None else None
        super().__init__(
            node,
            log,
            resources or {},
            transaction=transaction,
            timeout_s=timeout_s,
            decider=decider,
            recovery_interval_s=recovery_interval_s,
            clock=clock,
            sleep=sleep,
            recording=lambda: self._make_recording(telemetry, tokens, clock),
        )
        if self._observer is not None:
            self._observer.watches(self._observed())

        try:
            if http is not None:
                self._endpoint = self._listen(http)
            self._open()
        except BaseException:
            self.close()
            raise

        if self._endpoint is not None:
            self._endpoint.start()
        if background:
            self._start()

    @classmethod
    def from_config(
        cls,
        path: str | Path | Configuration = "xabridge.toml",
        *,
        transaction: type[Tx] = Transaction,  # type: ignore[assignment]  # as in the constructor
    ) -> TransactionManager[Tx]:
        """A manager as the configuration file says; ConfigurationError names the file and the key, and says what to do.
        A Configuration is what was read from such a file. `transaction` as in the constructor."""
        made: type[TransactionManager[Any]] = cls
        configuration = path if isinstance(path, Configuration) else configuration_from(path)

        try:
            return made(
                configuration.node,
                configuration.log,
                configuration.resources,
                transaction=transaction,
                timeout_s=configuration.timeout_s,
                decider=configuration.decider,
                recovery_interval_s=configuration.recovery_interval_s,
                telemetry=opentelemetry() if configuration.telemetry else None,
                http=configuration.http,
                http_token=_token_in("http_token_env", configuration.http_token_env),
                http_act_token=_token_in("http_act_token_env", configuration.http_act_token_env),
            )
        except ConfigurationError as error:
            raise error if path is configuration else ConfigurationError(f"{path}: {error}") from error

    # --- telemetry and pages --------------------------------------------------------------------------------

    def _observed(self) -> ObservedManager:
        return ObservedManager(self, lambda: self.consumers)

    def _listen(self, http: str) -> EndpointThread:
        pages = Pages(self._observed(), self.exposition)
        try:
            return EndpointThread(pages.by_path, *host_and_port(http), private=self._private)
        except (ValueError, AddressTaken) as error:
            raise ConfigurationError(str(error)) from error

    def _make_recording(
        self, telemetry: Telemetry | None, tokens: tuple[str | None, str | None], clock: Callable[[], float]
    ) -> Recording | None:
        """The recorder, where there is telemetry; it is shown to Prometheus, too, where that is configured. Timelines
        are kept for the pages that need the tokens."""
        if isinstance(self.exposition, Exposition):
            if telemetry is None:
                telemetry = opentelemetry(self.exposition.provider)
            else:
                telemetry.show(self.exposition.provider)
        self._observer = telemetry.recorder(self.node) if telemetry is not None else None
        token, act_token = tokens
        if token is None:
            return self._observer

        timelines = Timelines(self._observer)
        pages = {"/node": node_page(self._observed(), timelines, clock)}
        acts = None
        self._operations = _operations_of(self, acting=act_token is not None)
        if self._operations is not None:
            pages.update(self._operations.pages)
            acts = None if act_token is None else PostActions(act_token, self._operations.acts)
        elif act_token is not None:
            raise ConfigurationError("http_act_token: what it is for is not installed: pip install xabridge again")
        self._private = PrivatePages(token, pages, acts)
        return timelines

    def _close_parts(self) -> None:
        if self._operations is not None:
            self._operations.close()
        super()._close_parts()
        if self._endpoint is not None:
            self._endpoint.close()
        if isinstance(self.exposition, Exposition):
            self.exposition.close()

    # --- what is declared over it ---------------------------------------------------------------------------

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

    def transactional(
        self,
        function: Callable[..., Any] | None = None,
        *,
        propagation: Propagation = Propagation.REQUIRED,
        rollback_on: tuple[type[BaseException], ...] = (BaseException,),
        timeout_s: float | None = None,
        retries: int = 0,
    ) -> Any:
        """Decorates a function or coroutine function to run in a transaction; see `tm.propagation.decorator`."""
        return transactional(
            self,
            function,
            propagation=propagation,
            rollback_on=rollback_on,
            timeout_s=timeout_s,
            retries=retries,
        )

    def consumer(
        self, queue: str, **settings: Unpack[ConsumerOptions]
    ) -> Callable[[Callable[[Any, Tx_co], object]], Consumer]:
        """Decorates a handler(message, transaction) to run over a queue: see `tm.consumer`."""
        return lambda handler: Consumer(self, queue, handler, **settings)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers that were made for it, as far as somebody holds them."""
        return cast("tuple[Consumer, ...]", tuple(self._consumers))  # only a Consumer registers itself


def _operations_of(manager: Manager, *, acting: bool) -> Operations | None:
    """The operations that are installed; `acting`: something may be finished by hand. None: nothing is installed."""
    for entry in entry_points(group=OPERATIONS, name="node"):
        make = cast("Callable[..., Operations]", entry.load())
        return make(manager, acting=acting)
    return None


def _token_in(key: str, variable: str | None) -> str | None:
    """The token in an environment variable."""
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise ConfigurationError(f"{key}: {not_set(variable)}")
    hide(token)
    return token


def _checked_tokens(http: str | None, token: str | None, act_token: str | None) -> tuple[str | None, str | None]:
    if token is not None and http is None:
        raise ConfigurationError(
            'http_token: it is for a page of http, which is not configured: http = "127.0.0.1:9464"'
        )
    for name, one in (("http_token", token), ("http_act_token", act_token)):
        if one is not None and not (len(one) >= TOKEN_OCTETS and one.isascii() and one.isprintable()):
            raise ConfigurationError(f"{name}: expected at least {TOKEN_OCTETS} printable ASCII characters")
    if act_token is not None and token is None:
        raise ConfigurationError("http_act_token: who acts has to see first: http_token is not configured")
    if act_token is not None and act_token == token:
        raise ConfigurationError("http_act_token: it is the same as http_token, so that all who may look may act")
    return token, act_token
