"""These tests run one transaction that the simulated Service Bus decides, with a fault at every boundary in turn, as
`tests.rm_amqp.decider.test_deciding_faults` does over a broker of our own. Locks run out, also within transactions;
nobody hears of it but by the answer to an outcome. Mutants of the client each forget one rule of the service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rm_amqp.connection.links import ArrivedMessage, ConfirmedReceiver, Receiver
from rm_amqp.decider.channel import LocalWork
from rm_amqp.decider.tokens import FoundingMessage
from tests.rm_amqp.decider.test_deciding_faults import (
    FOUNDED,
    PREPARED,
    Field,
    World,
    campaign,
    openings,
    overtaken,
    paused,
)
from tests.rm_amqp.decider.test_deciding_together import ALL, POINTS, WHO, Site, one_dies, others_recover_meanwhile
from tests.rm_amqp.network import DELAYS_S, Kind, boundaries
from tests.rm_amqp.service_bus.namespace import LOCK_S
from tests.rm_amqp.service_bus.server import ServiceBusNetwork, shop_network
from tests.simulation.seeds import EVERY_POINT

KINDS: list[Kind] = [kind for kind in Kind if kind not in {Kind.CANCEL, Kind.MOVE}]
OPTIONS = "timeout=20&slots=1&topic=shop"
LAPSES_S = LOCK_S + 10
SOME = WHO if EVERY_POINT else {ALL: WHO[ALL]}


class ServiceBusWorld(World):
    """The same, over Service Bus."""

    brokers = "decider+amqp://here/"
    plain = OPTIONS

    @staticmethod
    def new_network() -> ServiceBusNetwork:
        return shop_network()


class ServiceBusField(ServiceBusWorld, Field):
    """One node and a field of faults."""

    network: ServiceBusNetwork

    @staticmethod
    def left(network: ServiceBusNetwork) -> list[str]:
        namespace = network.namespace
        left = [f"transaction {txn_id!r}" for txn_id in namespace.transactions]
        for entity in namespace.entities.values():
            left += [f"dead in {entity.path}" for _ in entity.dead]
            locked = [each for each in entity.messages if each.lock and each.locked_until_s > network.now]
            left += [f"lock in {entity.path}" for _ in locked]
        return left


class ServiceBusSite(ServiceBusWorld, Site):
    """Nodes and siblings over one topic."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_every_boundary(kind: Kind) -> None:
    heard = campaign(kind, OPTIONS, new_field=ServiceBusField, where=boundaries(kind, one_in=7))
    assert heard["committed"]
    assert bool(heard["rolled back"]) == (kind is not Kind.SLOW)


@pytest.mark.slow
def test_what_is_late_comes_when_its_locks_have_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DELAYS_S, Kind.SLOW, LAPSES_S)
    impatient = OPTIONS.replace("timeout=20", "timeout=3")
    heard = campaign(Kind.SLOW, impatient, new_field=ServiceBusField, where=boundaries(Kind.SLOW, "lapsed", one_in=7))
    assert heard["rolled back"] + heard["unknown"]


@pytest.mark.slow
@pytest.mark.parametrize("foundings", [[], FOUNDED], ids=["nothing", "founded three times"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_every_boundary_of_an_opening(kind: Kind, foundings: list[FoundingMessage]) -> None:
    openings(kind, foundings, ServiceBusField, one_in=14)


@pytest.mark.parametrize("others", SOME.values(), ids=SOME)
@pytest.mark.parametrize("point", POINTS)
def test_one_dies_and_others_recover(point: str, others: Sequence[str]) -> None:
    one_dies(point, others, at_once=True, new_site=ServiceBusSite)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped for long", "slow"])
@pytest.mark.parametrize("others", SOME.values(), ids=SOME)
@pytest.mark.parametrize("point", POINTS)
def test_one_stands_still_and_others_recover(point: str, others: Sequence[str], *, stopped: bool) -> None:
    others_recover_meanwhile(point, others, stopped=stopped, new_site=ServiceBusSite)


def test_a_process_that_stands_still_is_overruled() -> None:
    paused(ServiceBusField)


def test_a_slot_is_used_again_before_its_decision_has_ended() -> None:
    overtaken(ServiceBusField)


# --- mutants --------------------------------------------------------------------------------------------------
def _settles_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConfirmedReceiver, "_settled", Receiver._settled)


def _awaits_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(_self: LocalWork, arrived: ArrivedMessage, outcome: bytes) -> None:
        arrived.link.settle(arrived, _self.delivery_state(outcome))

    monkeypatch.setattr(LocalWork, "tell", tell)


def _takes_a_refused_outcome_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rm_amqp.decider.channel.refusal_in", lambda *_: None)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "settles outcomes itself": _settles_first,
    "awaits no answer to an outcome": _awaits_no_answer,
    "takes a refused outcome for done": _takes_a_refused_outcome_for_done,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    monkeypatch.setitem(DELAYS_S, Kind.SLOW, LAPSES_S)
    patient = OPTIONS.replace("timeout=20", "timeout=90")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        campaign(Kind.SLOW, patient, new_field=ServiceBusField, where=range(PREPARED, 1000))
