"""Broker: the asyncio shell around a container. Sockets, TLS, SASL, time, and the store's completions.

All of the container runs on the event loop. `dtx.broker.peer_scheduler` decides which peer is served next, and for how
long. A round ends with `flush`: its changes are written to the store together, and then each peer is sent what its
connection has to say. A small group of changes is forced on the loop as long as the disk is quick. The store's thread
forces any other one, and tells through `call_soon_threadsafe` what is durable. The loop goes on serving meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from dtx.amqp.conditions import Condition
from dtx.amqp.sasl import SaslServer, ServerPolicy
from dtx.broker.access.audit import Outcome
from dtx.broker.access.connection_limits import ConnectionLimits, network_of
from dtx.broker.access.credentials import Credentials
from dtx.broker.access.password_checks import PasswordChecks
from dtx.broker.access.permissions import Permissions, open_to_this_machine, open_to_users
from dtx.broker.config import configured_values
from dtx.broker.container import Container
from dtx.broker.endpoint.connection import BrokerConnection
from dtx.broker.peer_scheduler import PeerScheduler
from dtx.broker.settings import Settings
from dtx.broker.telemetry.monitoring import Monitoring
from dtx.protocol.conditions import Refusal
from dtx.store.contract import StoreAway, StoreError, StoreLeased, StoreLocked
from dtx.store.memory import Disk, MemoryStore
from dtx.store.sql import SqlStore
from xa import Code
from xa.tls import FollowedContext, end_of_certificate, load_certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dtx.broker.access.password_checks import Computation
    from dtx.broker.config import Address, BrokerConfig
    from dtx.broker.container import ServedConnection
    from dtx.broker.transactional_resource import Clock
    from dtx.store.contract import BrokerStore, Restored, Step

LOG: Final = logging.getLogger("xabridge.broker")
GOODBYE_S: Final = 5.0
MAX_EARLY: Final = 64 * 1024
EVENTS_PER_TURN: Final = 100
"""The work that is carried out for one peer before the others have their turn: some milliseconds."""
HEARTBEAT_S: Final = 0.05
"""How often at most it is looked whether heartbeats are due."""
STANDBY_S: Final = 1.0
"""How often a broker that waits for the store asks for it."""
SHORTEST_PAUSE_S: Final = 0.02
"""When a lease has run out by the server's clock, it is asked for after so long."""
MANY_PEERS: Final = 4
"""From so many on it is worth a further turn of the loop to gather what a turn has for the store and for them."""


class SystemClock:
    """The machine's time."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def rehearse_start(restored: Restored) -> None:
    """Takes the contents of a store as a broker that starts with it, and forgets them. StoreDamaged: it would not
    start."""
    permissions, users = Permissions({}), Credentials({}, b"")
    nowhere = MemoryStore(Disk(), lambda _: None)
    Container(nowhere, SystemClock(), Settings(), permissions, lambda _: None, credentials=users).restore(restored)


class Broker:
    """A broker on the running event loop. `hook` is called in the store's thread at each of its steps.

    `make_store` is for tests: it makes another store than that of the configuration, and is given the call that
    delivers completions.
    """

    def __init__(
        self,
        config: BrokerConfig,
        hook: Callable[[Step], None] = lambda _: None,
        clock: Clock = SystemClock(),  # noqa: B008 — it has no state
        make_store: Callable[[Callable[[Callable[[], None]], object]], BrokerStore] | None = None,
    ) -> None:
        self.config = config
        self.addresses: list[Address] = []
        self.notice = ""
        self.failure: StoreError | None = None
        users = Credentials.load(config.users) if config.users is not None else None
        permissions = config.permissions
        anonymous = config.anonymous
        if permissions is None and (users is not None or config.client_ca is not None):
            permissions, self.notice = open_to_users(config.hosts)
        elif permissions is None:
            permissions, self.notice = open_to_this_machine(config.hosts)
            anonymous = True
        self.policy = ServerPolicy(users, anonymous=anonymous, plain_without_tls=config.plain_without_tls)
        self._loop = asyncio.get_running_loop()
        self._store: BrokerStore

        if make_store is None:
            self._store = SqlStore(
                config.store,
                self._deliver,
                hook,
                self._at_flush,
                lease_s=config.settings.lease_s,
                lost=self._has_lost_the_store,
            )
        else:
            self._store = make_store(self._deliver)

        self.container = Container(
            self._store, clock, config.settings, permissions, self._store_stopped, credentials=users
        )
        self.container.configuration = [*configured_values(config)]
        self.monitoring = Monitoring(config, self.container, self._store, self.flush_soon)
        self.http: Address | None = None
        """Where it answers probes."""
        self.peers: dict[ServedConnection, PeerProtocol] = {}
        self.open_peers: set[PeerProtocol] = set()
        self.scheduler: PeerScheduler[PeerProtocol] = PeerScheduler(self, clock.monotonic)
        self._ticked_at = self._loop.time()
        self._forces_since = 0.0
        """When the store was given what it has not answered; 0: it has answered everything."""
        self._unheard: set[PeerProtocol] = set()
        """Peers to which nothing is sent, because another process may have the store by now."""
        self._flushing = False
        self._continuing = False
        settings = config.settings
        self.connection_limits = ConnectionLimits(
            self.container.limits, self.container.permissions, clock.monotonic, settings.wrong_password_s
        )
        self.computations = PasswordChecks(
            clock.monotonic, self.connection_limits.failures, self._compute, self._loop.call_later
        )
        self._computing = ThreadPoolExecutor(1, "passwords")
        self.lines = self.container.lines
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tick_at = math.inf
        self._stands_by: StoreError | None = None
        """Why it does."""
        self._leased_until_s: float | None = None
        self._certificate_end = math.inf
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()

    # -- life
    async def start(self) -> None:
        """Opens the store, restores what it holds, and listens. Where the store has to be waited for, probes are
        answered meanwhile; nothing else happens where `stop` is called before."""
        self.http = await self.monitoring.start()
        try:
            while not await self._has_store():
                if self._stop.is_set():
                    await self.monitoring.close()
                    return
        except StoreError:
            await self.monitoring.close()
            raise

        tls = self._followed_tls() if self.config.listen_tls else None
        for address, context in [(one, None) for one in self.config.listen] + [
            (one, tls) for one in self.config.listen_tls
        ]:
            server = await self._loop.create_server(partial(PeerProtocol, self, context), address.host, address.port)
            self._servers.append(server)
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                self.addresses.append(type(address)(host, port))
        self._tick()

    async def _has_store(self) -> bool:
        """Opens the store. False: it can't be had yet, and should be asked for again; a pause has passed."""
        try:
            self.container.open()
        except StoreError as error:
            pause_s = self._pause_after(error)
            if pause_s is None:
                raise
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)
            return False
        return True

    def _pause_after(self, error: StoreError) -> float | None:
        """How long to wait after the store could not be opened; None: for ever. One that stands by waits for another
        process, and for the server. Any other waits only for a lease that its process does not renew any more."""
        if self.config.standby and isinstance(error, StoreLocked | StoreAway):
            if type(error) is not type(self._stands_by):
                LOG.warning("standing by: %s", error)
            self._stands_by = error
            return STANDBY_S
        if isinstance(error, StoreLeased) and self._leased_until_s in {None, error.until_s}:
            self._leased_until_s = error.until_s
            return min(max(error.lasts_s, SHORTEST_PAUSE_S), STANDBY_S)
        return None

    def _followed_tls(self) -> FollowedContext:
        config = self.config
        files = [file for file in (config.certificate, config.key, config.client_ca) if file is not None]

        def failed(error: OSError) -> None:
            LOG.error("certificate, key or client_ca have changed and can't be used, the former ones go on: %s", error)

        followed = FollowedContext(self._tls, files, failed)

        def certificate_end() -> float:
            followed.make_current()
            return self._certificate_end

        self.monitoring.certificate_end = certificate_end
        return followed

    def _tls(self) -> ssl.SSLContext:
        config = self.config
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if config.certificate is not None and config.key is not None:
            load_certificate(context, config.certificate, config.key)
        if config.client_ca is not None:
            context.load_verify_locations(config.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL

        if config.certificate is not None:
            with contextlib.suppress(ValueError):  # OpenSSL takes it
                self._certificate_end = end_of_certificate(config.certificate)
        return context

    async def run(self) -> None:
        """Serves until `stop` is called, or the store stops."""
        await self._stop.wait()
        await self.close()

    def stop(self) -> None:
        """Lets `run` come to its end."""
        self._stop.set()

    async def close(self) -> None:
        """Says goodbye to every peer, forces what waits, and lets the store go."""
        await self.monitoring.close()
        for server in self._servers:
            server.close()
        if self.failure is None:
            self.container.audit.write_sums()
        goodbye = Refusal(Condition.CONNECTION_FORCED, "the broker shuts down", Code.XAER_RMFAIL)
        for connection in tuple(self.peers):
            if self.failure is None:
                connection.close(goodbye)
        self.flush()
        if self.open_peers and self.failure is None:
            self._gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), GOODBYE_S)

        for peer in tuple(self.open_peers):
            peer.abort()
        await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()
        self._computing.shutdown(wait=False, cancel_futures=True)
        self._store.hand_over()
        await self._loop.run_in_executor(None, self._store.close)

    def _has_lost_the_store(self, error: StoreError) -> None:
        """Another process has it, or may have it."""
        self.container.resource.stop(error)

    def _store_stopped(self, error: StoreError) -> None:
        LOG.critical("the store stopped, no client is answered any more: %s", error)
        self.failure = error
        for peer in tuple(self.open_peers):
            peer.abort()
        self.stop()

    # -- turns
    def _deliver(self, call: Callable[[], None]) -> object:
        """Runs a completion of the store on the loop; called in the store's threads."""
        return self._loop.call_soon_threadsafe(self._completed, call)

    def _completed(self, call: Callable[[], None]) -> None:
        call()
        self._note_force()
        self.scheduler.answered()
        self.flush_soon()

    def flush_soon(self) -> None:
        """Has `flush` called when everything that the loop found ready is carried out: one write per peer."""
        if len(self.open_peers) < MANY_PEERS:  # there is little else to gather
            self.flush()
        else:
            self._flush_later()

    def _flush_later(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        self.flush()

    def _at_flush(self, write: Callable[[], None]) -> None:
        """What was submitted to the store is written in `flush`, which every turn ends with."""

    def flush(self) -> None:
        """Has changes written to the store, unless a round goes on or the store is at work for several payers: then
        they are written together, later. Sends what connections have to say."""
        writes = self.scheduler.end() and not (self._store.busy and self.scheduler.is_shared)
        if writes:
            self._write()
        while touched := self.container.take_touched():
            for connection in touched:
                peer = self.peers.get(connection)
                if peer is not None:
                    peer.write()

        for connection in self.container.take_wanting():
            peer = self.peers.get(connection)
            if peer is not None:
                self.scheduler.wants_turn(peer)
        if self.container.resource.is_due_sooner:
            self.tick_within(self.container.resource.next_due_in())
        if writes and self._store.waits:  # of what was completed or sent just now: the others have their turn before
            self._flush_later()
        if self.container.continues and not self._continuing:
            self._continuing = True
            self._loop.call_soon(self._go_on)
        self.scheduler.go_on()

    def _write(self) -> None:
        if self._store.waits:
            self._forces_since = self._loop.time()
            self._store.write()
            self._note_force()

    def _note_force(self) -> None:
        """The store may have made durable what it was given last."""
        if self._forces_since and not self._store.busy:
            self.scheduler.forced(self._loop.time() - self._forces_since)
            self._forces_since = 0.0

    # -- for rounds
    @property
    def overloaded(self) -> bool:
        return self.container.overloaded

    @property
    def waiting(self) -> Mapping[str, int]:
        return self.container.resource.waiting

    def serve(self, peer: PeerProtocol, budget_s: float) -> bool:
        resource = self.container.resource
        resource.payer = peer.payer
        try:
            return peer.take_turn(budget_s)
        finally:
            resource.payer = ""

    def turn_was_long(self) -> None:
        self.container.long_turns += 1

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_later(0, call)  # where `call_soon` would call it before what was sent meanwhile is read

    def _compute(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Does work of milliseconds in the thread that is for it."""

        def answered(future: asyncio.Future[object]) -> None:
            if future.cancelled():  # the broker shuts down
                return
            error = future.exception()
            if error is not None:
                LOG.error("a password could not be checked, and counts as wrong", exc_info=error)
            done(future.result() if error is None else False)

        self._loop.run_in_executor(self._computing, work).add_done_callback(answered)

    def note_sign_in(self, network: str, sasl: SaslServer) -> None:
        """Somebody from this network has signed in, or was refused: the audit log says so. A name that no user has is
        not in it."""
        audit, users = self.container.audit, self.policy.users
        if sasl.identity is not None:
            with_old = self.container.has_other_password(sasl.identity)
            audit.signed_in(sasl.identity.name, network, Outcome.DONE, with_old=with_old)
        elif users is not None and users.verifiers(sasl.tried):
            audit.signed_in(sasl.tried, network, Outcome.REFUSED, "wrong password")
        else:
            audit.signed_in("", network, Outcome.REFUSED)

    @property
    def may_tell(self) -> bool:
        """Whether what is known here may be sent to peers: no one else can have the store."""
        return self._store.may_tell

    def hold_back(self, peer: PeerProtocol) -> None:
        """Another process may have the store: sends this peer nothing until it is known that none has."""
        if not self._unheard:
            LOG.warning("the lease on the store has run out: no peer gets an answer until it is renewed")
        self._unheard.add(peer)

    def _tell_again(self) -> None:
        """The lease may have been renewed, so that no one else had the store meanwhile."""
        if self._unheard and self.may_tell:
            unheard, self._unheard = self._unheard, set()
            for peer in unheard:
                peer.write()

    def left(self, peer: PeerProtocol) -> None:
        """A peer's socket is closed."""
        self.open_peers.discard(peer)
        self._unheard.discard(peer)
        self.scheduler.left(peer)
        self.connection_limits.leaves(peer)
        if not self.open_peers:
            self._gone.set()

    def look_at_the_clock(self) -> None:
        """The clock was moved, as only tests do: what is due is done now."""
        if self._timer is not None:
            self._timer.cancel()
        self._tick_at = self._loop.time()
        self._tick()

    def _tick(self) -> None:
        """Time has passed. Where the process was stopped, or the loop waited for the disk, what the peers said
        meanwhile may not have been read yet: that time is no peer's silence."""
        if self.failure is None:
            held_s = max(0.0, self._loop.time() - self._tick_at)
            delay = self.container.resource.tick()
            now_ms = int(time.monotonic() * 1000)
            now = self._loop.time()
            unread_s, self._ticked_at = now - self._ticked_at, now
            for connection, peer in tuple(self.peers.items()):
                unheard_s = held_s if peer.reading else unread_s  # from who waits for a turn nothing is read
                due_ms = connection.tick(now_ms, int(unheard_s * 1000))
                if due_ms:
                    delay = min(delay, max(HEARTBEAT_S, (due_ms - now_ms) / 1000))

            self._drop_stalled(held_s)
            self.flush()
            self._tell_again()
            self._store.maintain()
            self._tick_at = self._loop.time() + max(delay, 0.01)
            self._timer = self._loop.call_at(self._tick_at, self._tick)

    def tick_within(self, seconds: float) -> None:
        """Something came that may be due before the next tick: a message, or a peer's heartbeat."""
        at = self._loop.time() + seconds
        if self._timer is not None and at < self._tick_at:
            self._timer.cancel()
            self._tick_at = at
            self._timer = self._loop.call_at(at, self._tick)

    def _drop_stalled(self, held_s: float) -> None:
        """Drops peers that have taken nothing of what they were sent for as long as a peer may be silent. Heartbeats
        don't help such a peer, because others wait for the messages that it holds."""
        patience_s = self.config.settings.idle_timeout_s
        now = self._loop.time()
        for peer in tuple(self.open_peers):
            if peer.stalled_at is None:
                continue
            peer.stalled_at += held_s
            if patience_s and now - peer.stalled_at > patience_s:
                self.lines.warn("%s: dropped, it has read nothing for %s s", peer.address, patience_s)
                peer.abort()

    def _go_on(self) -> None:
        """Another turn for what was too much for one."""
        self._continuing = False
        self.container.go_on()
        self.flush_soon()


class PeerProtocol(asyncio.Protocol):
    """One peer's socket: TLS first, where there is a context for it, then SASL, then AMQP."""

    def __init__(self, broker: Broker, tls: FollowedContext | None) -> None:
        self._broker = broker
        self._tls = tls
        self._encrypting: asyncio.Task[None] | None = None
        self._early = b""
        """The octets that came behind the TLS handshake before this end was ready for them."""
        self._transport: asyncio.Transport | None = None
        self.host = ""
        self.payer = ""
        """Who pays for the time that the peer is served."""

        self._is_in = False
        self._sasl: SaslServer | None = None
        self._connection: BrokerConnection | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self.address = ""
        self.reading = True
        self._computation: Computation | None = None
        self.stalled_at: float | None = None
        """Since when the peer takes nothing of what it is sent."""

    # -- asyncio
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        broker = self._broker
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        peername = transport.get_extra_info("peername")
        self.address = _shown(peername)
        self.host = network_of(str(peername[0])) if isinstance(peername, tuple) and peername else ""
        self.payer = f"from {self.host}"
        if broker.failure is not None or not broker.may_tell:
            transport.abort()
            return
        if broker.connection_limits.full:
            broker.lines.warn("%s: refused, every connection is taken", self.address)
            transport.abort()
            return
        goes = broker.connection_limits.comes(self)
        if isinstance(goes, PeerProtocol):
            broker.lines.warn("%s: dropped, too many peers have not said who they are", goes.address)
            goes.abort()

        broker.open_peers.add(self)
        loop = asyncio.get_running_loop()
        self._handshake = loop.call_later(broker.config.settings.handshake_s, self._too_slow)
        if self._tls is None:
            self._greet(None)
        else:
            transport.pause_reading()
            self._encrypting = loop.create_task(self._encrypt(transport, self._tls.current))

    async def _encrypt(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        settings, encrypted = self._broker.config.settings, None
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=settings.handshake_s
            )
        except (OSError, ssl.SSLError) as error:
            self._broker.lines.warn("%s: no TLS: %s", self.address, error)
            return
        finally:
            if encrypted is None:  # also when it took too long, and the task was cancelled
                transport.abort()
                self._broker.left(self)

        if encrypted is None:
            return
        self._transport = encrypted
        self._greet(encrypted.get_extra_info("ssl_object"))
        if self._early:
            self._broker.scheduler.has_input(self)

    def _greet(self, encrypted: Any) -> None:
        self._sasl = SaslServer(
            self._broker.policy,
            encrypted=encrypted is not None,
            certified=_certified(encrypted),
            nonce=os.urandom,
        )

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.feed(data)
            self._broker.scheduler.has_input(self)
            return
        self._early += data
        if len(self._early) > MAX_EARLY:
            self.abort()
        elif self._sasl is not None:
            self._broker.scheduler.has_input(self)

    # -- turns
    @property
    def urgent(self) -> bool:
        """Whether what comes next decides about a transaction."""
        return self._connection is not None and self._connection.urgent

    @property
    def writes(self) -> bool:
        """Whether what comes next may change the store."""
        return self._connection is not None and self._connection.writes

    def take_turn(self, budget_s: float) -> bool:
        """Carries out what the peer sent, and no new event after so long; whether there may be more."""
        more = done = False
        try:
            more = self._authenticate() if self._connection is None else self._carry_out(self._connection, budget_s)
            done = True
        finally:
            if not done:  # a defect of ours: the loop logs it, and the peer must not wait for ever
                self.abort()
        return more

    def _carry_out(self, connection: BrokerConnection, budget_s: float) -> bool:
        more = connection.go_on(EVENTS_PER_TURN, budget_s)
        if not self._is_in and connection.opened:
            self._come_in(connection)
        return more

    def _come_in(self, connection: BrokerConnection) -> None:
        self._is_in = True
        message = self._broker.connection_limits.refusal(self, connection.identity)
        if message is not None:
            user = connection.identity
            self._broker.lines.warn("%s, %s: refused, %s", self.address, user, message, user=user)
            connection.close(Refusal(Condition.RESOURCE_LIMIT, message, Code.XAER_RMERR))
        self._broker.tick_within(HEARTBEAT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._broker.left(self)
        self._drop_computation()
        if self._handshake is not None:
            self._handshake.cancel()
        if self._connection is not None:
            self._broker.peers.pop(self._connection, None)
            self._connection.lost()
            self._broker.flush_soon()

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.room.writable = False
            self.stalled_at = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self.stalled_at = None
            self._connection.resume()
            self._broker.flush_soon()

    # -- SASL
    def _authenticate(self) -> bool:
        """Goes on with SASL; whether the peer is authenticated, and has sent more."""
        sasl, early, self._early = self._sasl, self._early, b""
        if sasl is not None and not sasl.failed:
            sasl.feed(early)
            self._go_on(sasl)
        return self._connection is not None and self._connection.has_input

    def _go_on(self, sasl: SaslServer) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not self._broker.may_tell:
            self.abort()
            return
        octets = sasl.output()
        if sasl.failed:
            self._drop_computation()
            self._broker.lines.warn("%s: %s", self.address, sasl.failure)
            delay_s = 0.0
            if sasl.mechanism:
                delay_s = self._broker.connection_limits.failed(self.host)
                self._broker.note_sign_in(self.host, sasl)
            self.pause_reading()
            asyncio.get_running_loop().call_later(delay_s, self._say_no, octets)
            return

        if octets:
            transport.write(octets)
        if sasl.computation is not None:
            if self._computation is None:  # reading goes on: so it is known when the peer leaves
                self._computation = self._broker.computations.ask(self.host, sasl.computation, self._computed)
        elif sasl.done and sasl.identity is not None:
            self._sasl = None
            self._connection = BrokerConnection(self._broker.container, sasl.identity, self.address)
            self._broker.peers[self._connection] = self
            if not sasl.identity.is_anonymous:
                self.payer = f"user {sasl.identity.name}"
                self._broker.note_sign_in(self.host, sasl)
            self._connection.feed(sasl.rest)

    def _computed(self, result: object) -> None:
        self._computation = None
        if self._sasl is not None:
            self._sasl.computed(result)
            self._go_on(self._sasl)
            if self._connection is not None:
                self._broker.scheduler.has_input(self)

    def _drop_computation(self) -> None:
        if self._computation is not None:
            self._broker.computations.drop(self._computation)
            self._computation = None

    def _say_no(self, octets: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(octets)
            self._transport.close()

    def _too_slow(self) -> None:
        if self._connection is None or not self._connection.opened:
            waited_s = self._broker.config.settings.handshake_s
            self._broker.lines.warn("%s: no open connection after %s s", self.address, waited_s)
            if self._encrypting is not None:
                self._encrypting.cancel()
            self.abort()

    # -- for the broker
    def write(self) -> None:
        """Writes what the connection has to say."""
        connection, transport = self._connection, self._transport
        if connection is None or transport is None:
            return
        if not self._broker.may_tell:
            self._broker.hold_back(self)
            return
        while connection.room.writable and (octets := connection.output()):
            transport.write(octets)
        if connection.closed and not transport.is_closing():
            transport.close()

    def abort(self) -> None:
        """Drops the connection."""
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Reads nothing more."""
        if self._transport is not None and self.reading:
            self.reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads on."""
        refused = self._sasl is not None and self._sasl.failed
        if self._transport is not None and not (self.reading or refused or self._transport.is_closing()):
            self.reading = True
            with contextlib.suppress(RuntimeError):  # it was closed at this moment
                self._transport.resume_reading()


def _shown(peer: Any) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else "?"


def _certified(encrypted: Any) -> str | None:
    """The common name in the client's certificate."""
    certificate = encrypted.getpeercert() if encrypted is not None else None
    if not certificate:
        return None
    names = [value for group in certificate.get("subject", ()) for key, value in group if key == "commonName"]
    return names[0] if len(names) == 1 else None
