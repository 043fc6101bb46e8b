"""These tests run one transaction that the broker decides over a network in memory, with a fault at every boundary in
turn. Recovery runs at once, while late frames are still on their way, and again when all frames have arrived.

After every fault the messages and the row must be done together, or neither; the application must have got that
outcome, unless it got "unknown"; and nothing may be left. Mutants of the code that keeps the tokens each make one
mistake, and these tests must notice every one.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dtx.protocol.replies import ACCEPTED
from rm_amqp import DecidingBroker, Message, NoMessage
from rm_amqp.decider.channel import LocalWork
from rm_amqp.decider.decision_log import HOLD_WAIT_S, DecisionLog
from rm_amqp.decider.token_queues import HeldToken, TokenQueues
from rm_amqp.decider.tokens import FoundingMessage, Token
from tests.rm_amqp.client import RMID, look, put, transaction
from tests.rm_amqp.network import DELAYS_S, Kind, Network, boundaries
from tests.simulation.seeds import EVERY_POINT
from tests.tm.wrapped import DECIDER_VERBS, hooked
from tm import HeuristicOutcomeError, ManagerUnusable, OutcomeUnknown, RolledBack, TransactionManager
from tm.log.contract import DecisionLog as TwoPhaseLog
from tm.recovery.lease import LEASE_S
from tm.resources import ResourceConfig
from tm.resources.resource import Mode
from xa import Code, Owner, ResourceFactory, XaError
from xabridge.testing.reference import ReferenceFactory, ReferenceStore

OPTIONS = {
    "plain": "timeout=20&slots=1",
    "prefetch": "timeout=20&slots=1&prefetch=10",
    "impatient": "timeout=3&slots=1",  # what is slow comes after everybody has given it up
}
LONG_S = 7200
ZOMBIE_S = 30.0
"""How late something comes that nobody waits for, and that the broker has not given up."""
PREPARED = 30
"""About the boundary from which on all others are prepared: what nobody knows the outcome of comes behind it."""
SHARES = (
    dict.fromkeys(OPTIONS.values(), slice(None))
    if EVERY_POINT
    else {
        OPTIONS["plain"]: slice(None),
        OPTIONS["prefetch"]: slice(0, None, 2),
        OPTIONS["impatient"]: slice(1, None, 2),
    }
)
"""Which of the boundaries a fault strikes at: each of two ways that differ a little takes every other one."""
MOST_PASSES = 12


class World:
    """A broker that decides, with the queues x and y, and a database with two phases."""

    mode: Mode = "decider"
    brokers = "decider+amqp://here,there/"
    plain = OPTIONS["plain"]

    def __init__(self, messages: Iterable[str], options: str = "") -> None:
        self.network = self.new_network()
        self.store = ReferenceStore("shop")
        self.url = f"{self.brokers}?{options or self.plain}"
        rm = self.client()
        put(rm, "x", messages)
        rm.close("", RMID)

    @staticmethod
    def new_network() -> Network:
        """The network, and its broker."""
        return Network()

    def client(self) -> Any:
        """Another client of the broker."""
        rm = self.network.decider()
        rm.open(self.url, RMID)
        return rm

    def look(self, queue: str) -> list[Any]:
        """What is available."""
        return self.look_into(queue)[0]

    def look_into(self, *queues: str) -> list[list[Any]]:
        """What is available in each of them."""
        rm = self.client()
        found = [look(rm, queue) for queue in queues]
        rm.close("", RMID)
        return found

    def manager_of(
        self, node: str, broker: ResourceFactory, shop: ResourceFactory, log: TwoPhaseLog | None = None
    ) -> TransactionManager:
        """A manager over both, of which these make the instances."""
        return TransactionManager(
            node,
            log,
            {
                "broker": ResourceConfig(self.url, self.mode, factory=broker),
                "shop": ResourceConfig(self.store.url, factory=shop),
            },
            clock=self.network.monotonic,
            sleep=self.network.sleep,
            background=False,
        )

    def pass_long(self, manager: TransactionManager) -> None:
        """The manager is closed, and everything that the broker does after some time is done."""
        network = self.network
        manager.close()
        network.sleep(1)
        network.now += LONG_S
        network.broker_tick()
        network.sleep(1)


def outcome(manager: TransactionManager, row: str, sent: str) -> str:
    """What the application is told of a transaction in which a message becomes a row and an answer."""
    try:
        with manager.begin() as tx:
            tx["shop"].write(row, tx["broker"].receive("x", 5).body)
            tx["broker"].send("y", Message(sent))
    except OutcomeUnknown:
        return "unknown"
    except HeuristicOutcomeError:
        return "in part"
    except (RolledBack, ManagerUnusable, XaError, NoMessage):  # unusable: it was not begun
        return "rolled back"
    return "committed"


class Field(World):
    """The tokens, a manager with points at which something happens, and another manager of the node."""

    def __init__(self, options: str = "") -> None:
        self.points: list[tuple[str, Callable[[], object]]] = []
        """What happens at which point ("before decide"), in turn."""
        self.clients: list[DecidingBroker] = []
        """Those of the managers."""
        super().__init__(["M1", "M3"], options)
        self.manager = self.new_manager(hooked(self._pass, DECIDER_VERBS))
        self.other = self.new_manager(lambda rm: rm)

    def _pass(self, when: str, verb: str) -> None:
        if self.points and self.points[0][0] == f"{when} {verb}":
            self.points.pop(0)[1]()

    def new_manager(self, wrap: Callable[[Any], Any]) -> TransactionManager:
        """A manager of the node."""
        return self.manager_of("sim-1", lambda _: wrap(self._new_client()), ReferenceFactory(self.store))

    def _new_client(self) -> DecidingBroker:
        self.clients.append(self.network.decider())
        return self.clients[-1]

    def transaction(self, row: str = "row", sent: str = "M2") -> str:
        """What the application is told."""
        return outcome(self.manager, row, sent)

    def recover_at_once(self) -> None:
        """Another process of the node recovers: at once, when the lease of the first one runs, and when that has run
        out, while what was sent before may still be on its way."""
        self.network.faults.clear()
        self.other.recover()
        self.network.sleep(LEASE_S)
        self.other.recover()
        self.other.close()

    def recover(self) -> None:
        """Everything has arrived; the manager recovers."""
        network = self.network
        network.faults.clear()
        network.sleep(200)
        for _ in range(MOST_PASSES):
            report = self.manager.recover()
            network.sleep(60)
            if report.clean and not report.ended and not report.findings:
                break
        else:
            pytest.fail(f"still in doubt: {report}")
        self.pass_long(self.manager)

    def check(self, told: str, where: str) -> None:
        committed = "row" in self.store.data
        assert told in {"unknown", "committed" if committed else "rolled back"}, where
        sent, left, tokens, leases = self.look_into("y", "x", "xabridge.tokens.0", "xabridge.tokens")
        assert sent == (["M2"] if committed else []), where
        assert left == (["M3"] if committed else ["M1", "M3"]), where
        assert [Token.decode(body).decided for body in tokens] == [()], where
        assert len(leases) == 1, where
        assert self.left(self.network) == [], where
        assert not self.store.in_doubt, where

    @staticmethod
    def left(network: Any) -> list[str]:
        """What is left of branches, transactions and locks."""
        container = network.container
        left = [str(branch) for branch in container.registry]
        return left + [
            queue.name for queue in container.resource.queues.values() if queue.counters.held or queue.counters.pending
        ]


def campaign(
    kind: Kind,
    options: str = OPTIONS["plain"],
    *,
    at_once: bool = True,
    new_field: type[Field] = Field,
    where: Iterable[int] = range(1, 1000),
) -> Counter[str]:
    """A fault at every boundary in turn, or at these; how often the application was told what."""
    heard: Counter[str] = Counter()
    for at in where:
        field = new_field(options)
        field.network.boundaries, field.network.faults = 0, {at: kind}
        told = field.transaction()
        struck = not field.network.faults
        if at_once:
            field.recover_at_once()

        field.recover()
        field.check(told, f"{kind.name} at boundary {at}, {options}")
        heard[told] += 1
        if not struck:
            assert told == "committed"
            assert at > 20, "there are boundaries"
            break
    return heard


def paused(new_field: type[Field] = Field) -> None:
    """A process stands still behind its prepares, and goes on when recovery has told the others how it ends."""
    field = new_field()
    field.points.append(("before decide", field.recover_at_once))
    told = field.transaction()
    field.recover()
    assert told == "rolled back"
    field.check(told, "paused before it decides")


def overtaken(new_field: type[Field] = Field) -> None:
    """A decision that could not be carried out yet; the slot's next transaction; then the process is gone."""
    field = new_field()
    field.points.append(("after decide", field.store.partition))
    assert field.transaction("row 1", "N1") == "unknown"
    field.store.heal()
    field.network.sleep(60)
    assert field.transaction("row 2", "N2") == "committed"
    field.clients[0].drop()
    field.network.sleep(LEASE_S)
    for _ in range(MOST_PASSES):
        if field.other.recover().clean:
            break
    field.other.close()
    assert field.look("y") == ["N1", "N2"]
    assert sorted(field.store.data) == ["row 1", "row 2"]
    assert Token.decode(field.look("xabridge.tokens.0")[0]).decided == ()


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_at_work_is_left_to_who_is_at_work(when: str) -> None:
    """Another process of the node recovers while the first one decides: it settles nothing, and ends nothing."""
    field = Field()
    field.points.append((f"{when} decide", lambda: [field.other.recover() for _ in range(3)]))
    assert field.transaction() == "committed"
    field.other.close()
    field.recover()
    field.check("committed", f"another one recovered {when} it decided")


FOUNDED = [FoundingMessage(bytes([number]) * 8, 1) for number in (9, 4, 7)]


@pytest.mark.slow
@pytest.mark.parametrize("foundings", [[], FOUNDED], ids=["nothing", "founded three times"])
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.CANCEL])
def test_a_fault_at_every_boundary_of_an_opening(kind: Kind, foundings: list[FoundingMessage]) -> None:
    openings(kind, foundings)


def openings(kind: Kind, foundings: list[FoundingMessage], new_field: type[Field] = Field, one_in: int = 7) -> None:
    """Whatever became of the one that was hindered, everybody agrees afterwards, and one lease token is in use."""
    url = f"{new_field.brokers}?{new_field.plain}"
    for at in boundaries(kind, new_field.__name__, len(foundings), one_in=one_in):
        network = new_field.new_network()
        onlooker = network.decider()
        onlooker.open(f"{url}&token_queue=onlookers", RMID)
        with transaction(onlooker) as session:
            for founding in foundings:
                session.send("xabridge.tokens", Message(founding.encode()))
                for token in founding.first_tokens():
                    session.send(f"xabridge.tokens.{token.slot}", Message(token.encode()))

        onlooker.close("", RMID)
        network.boundaries, network.faults = 0, {at: kind}
        first, second = network.decider(), network.decider()
        heard = []
        with contextlib.suppress(XaError):
            first.open(url, RMID)
            heard.append(first.decider_id)

        struck = not network.faults
        network.faults.clear()
        for rm in (second, first):
            for _ in range(10):
                with contextlib.suppress(XaError):
                    rm.open(url, RMID)
                    break
                network.sleep(30)
            heard.append(rm.decider_id)
        assert len(set(heard)) == 1, f"{kind.name} at boundary {at}"
        network.sleep(100)
        assert new_field.left(network) == [], f"{kind.name} at boundary {at}"
        first.hold(Owner("sim-1", bytes(8), ""), 1, RMID)
        first.close("", RMID)
        second.close("", RMID)
        if not struck:
            assert at > 20, "there are boundaries"
            break


def test_a_process_that_stands_still_is_overruled() -> None:
    paused()


def test_a_slot_is_used_again_before_its_decision_has_ended() -> None:
    overtaken()


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.CANCEL])
def test_a_fault_at_every_boundary(kind: Kind, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if options == OPTIONS["impatient"]:
        monkeypatch.setitem(DELAYS_S, Kind.SLOW, ZOMBIE_S)
    where = boundaries(kind, options, one_in=5, each_from=PREPARED)[SHARES[options]]
    heard = campaign(kind, options, where=where)
    patient = kind is Kind.SLOW and options != OPTIONS["impatient"]
    assert ("unknown" in heard) == (not patient)
    assert ("rolled back" in heard) == (not patient)


@pytest.mark.slow
@pytest.mark.parametrize("held_by_another", [False, True])
def test_a_process_that_stood_still_keeps_nothing(*, held_by_another: bool) -> None:
    """Messages and the token come to it when it does not wait for them any more. It lives on, and others get them."""
    strikes = boundaries(Kind.STILL, one_in=5, each_from=PREPARED)
    for at in strikes if EVERY_POINT else strikes[held_by_another::2]:
        where = f"stood still at boundary {at}, the token held by another: {held_by_another}"
        field = Field()
        other = field.client()
        pooled = other.driver.connections.pool.acquire(work=True, deadline=math.inf)
        held = None
        if held_by_another:
            steps = pooled.channel.tokens.acquire(
                other.driver._decisions.founding, 0, field.network.now + 5, field.network.now + 10
            )
            held = pooled.connection.run(steps)

        field.network.boundaries, field.network.faults = 0, {at: Kind.STILL}
        told = field.transaction()
        struck = not field.network.faults
        field.network.faults.clear()
        if held is not None:
            pooled.connection.run(pooled.channel.tokens.release(held))
        field.network.sleep(5)
        for queue in field.network.container.resource.queues.values():
            assert queue.counters.held == 0, f"{queue.name}, {where}"
        other.close("", RMID)
        field.recover()
        field.check(told, where)
        if not struck:
            assert at > 20, "there are boundaries"
            break


def test_recovery_waits_once_for_a_token_that_another_process_keeps() -> None:
    """A process that stands still may keep it for long, and many transactions may be in doubt."""
    field = Field()
    other, rm = field.client(), field.client()
    pooled = other.driver.connections.pool.acquire(work=True, deadline=math.inf)
    now = field.network.now
    steps = pooled.channel.tokens.acquire(other.driver._decisions.founding, 0, now + 5, now + 10)
    held = pooled.connection.run(steps)
    began = field.network.now
    for number in range(50):
        with pytest.raises(XaError) as raised:
            rm.settle(b"gtrid %d" % number, RMID)
        assert raised.value.code is Code.XA_RETRY
    assert field.network.now - began < 2 * HOLD_WAIT_S
    pooled.connection.run(pooled.channel.tokens.release(held))
    assert rm.settle(b"gtrid", RMID) is None


# --- mutants --------------------------------------------------------------------------------------------------
def _looks_without_holding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DELAYS_S, Kind.SLOW, ZOMBIE_S)

    def settle(self: DecisionLog, gtrid: bytes, deadline: float) -> bytes | None:
        pooled = self._pool.acquire(work=True, deadline=deadline)
        tokens = pooled.connection.run(pooled.channel.tokens.shown(0, deadline))
        self._pool.release(pooled)
        return tokens[0].record_of(gtrid) if tokens else None

    monkeypatch.setattr(DecisionLog, "settle", settle)


def _settles_without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Token, "fencing", lambda self, _: self.renewed())


def _decides_over_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecisionLog, "_objection", lambda *_: "")


def _uses_a_slot_again_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def deciding(self: Token, gtrid: bytes, record: bytes, _ended: object) -> Token:
        return replace(self.renewed(), decided=((gtrid, record),))

    monkeypatch.setattr(Token, "deciding", deciding)


class Outside(LocalWork):
    """Work of no transaction."""

    __slots__ = ()

    def delivery_state(self, outcome: bytes = b"", rolled_back: bytes = b"") -> Any:  # noqa: ARG002
        return None


def _decides_outside_of_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    async def replaced(
        self: TokenQueues, _work: LocalWork, held: Sequence[HeldToken], token: Token, deadline: float
    ) -> None:
        work = Outside()
        await self.send([(self.address(token.slot), token.encode())], work, deadline)
        for each in held:
            each.arrived.link.settle(each.arrived, None, ACCEPTED)

    monkeypatch.setattr(TokenQueues, "replace", replaced)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], object]]] = {
    "settles by a look, without holding the token": (
        _looks_without_holding,
        lambda: campaign(Kind.SLOW, OPTIONS["impatient"], where=range(PREPARED, 1000)),
    ),
    "settles without a fence": (_settles_without_a_fence, paused),
    "decides over a fence": (_decides_over_a_fence, paused),
    "uses a slot again before its decision has ended": (_uses_a_slot_again_before_the_end, overtaken),
    "decides outside of the transaction": (
        _decides_outside_of_the_transaction,
        lambda: campaign(Kind.CUT, where=range(PREPARED, 1000)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, see = MUTANTS[name]
    break_it(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        see()
