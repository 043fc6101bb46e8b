"""One transaction that the broker decides, over a network in memory, with a fault at every boundary in turn; and what
recovery does at once, while what was sent late is still on its way, and again when everything has arrived.

Whatever happens, and wherever: the messages and the row are done together, or neither; that is what the application was
told, unless it was told that it is unknown; and nothing is left. Mutants of the token's keepers each make a mistake that
this has to see.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from rm_amqp import Message, NoMessage
from rm_amqp.local import LocalWork
from rm_amqp.token_log import TokenLog
from rm_amqp.token_queues import TokenQueues
from rm_amqp.tokens import Token
from tests.rm_amqp.client import RMID, new_xid
from tests.rm_amqp.network import Fault, Kind, Network
from tm import OutcomeUnknown, RolledBack, TransactionManager
from tm.resources import ResourceConfig
from xa import TMONEPHASE, TMSUCCESS, XaError
from xa.reference import ReferenceFactory, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rm_amqp import DecidingBroker

OPTIONS = {"plain": "timeout=20&slots=1", "prefetch": "timeout=20&slots=1&prefetch=10"}
LONG_S = 7200
MOST_PASSES = 12


class Field:
    """Two queues and the tokens at a broker that decides; a database with two phases; a manager."""

    def __init__(self, options: str = OPTIONS["plain"]) -> None:
        self.network = Network()
        self.store = ReferenceStore("shop")
        self.url = f"decider+amqp://memory/?{options}"
        with_broker = self.client()
        self.work(with_broker, lambda session: [session.send("x", Message(body)) for body in ("M1", "M3")])
        with_broker.close("", RMID)
        self.manager = self.new_manager()
        self.other = self.new_manager()

    def new_manager(self) -> TransactionManager:
        """A manager of the node."""
        return TransactionManager(
            "sim-1",
            None,
            {
                "broker": ResourceConfig(self.url, "decider", factory=self.network.decider),
                "shop": ResourceConfig(self.store.url, factory=ReferenceFactory(self.store)),
            },
            clock=self.network.monotonic,
            sleep=self.network.sleep,
            background=False,
        )

    def client(self) -> DecidingBroker:
        """Another client of the broker."""
        rm = self.network.decider()
        rm.open(self.url, RMID)
        return rm

    def work(self, rm: DecidingBroker, call: Callable[[Any], Any]) -> Any:
        """Work in a transaction of its own."""
        rm.start(xid := new_xid(), RMID)
        result = call(rm.session(RMID))
        rm.end(xid, RMID, TMSUCCESS)
        rm.commit(xid, RMID, TMONEPHASE)
        return result

    def look(self, queue: str) -> list[object]:
        """What is available."""
        rm = self.client()
        found = self.work(rm, lambda session: [message.body for message in session.browse(queue)])
        rm.close("", RMID)
        return list(found)

    def transaction(self) -> str:
        """What the application is told."""
        try:
            with self.manager.begin() as tx:
                message = tx["broker"].receive("x", 5)
                tx["shop"].write("row", message.body)
                tx["broker"].send("y", Message("M2"))
        except OutcomeUnknown:
            return "unknown"
        except (RolledBack, XaError, NoMessage):
            return "rolled back"
        return "committed"

    def recover_at_once(self) -> None:
        """Another process of the node recovers, while what was sent before may still be on its way."""
        self.network.fault = None
        self.other.recover()
        self.other.close()

    def recover(self) -> None:
        """Everything has arrived; the manager recovers."""
        network = self.network
        network.fault = None
        network.now += 200
        network.settle()
        for _ in range(MOST_PASSES):
            report = self.manager.recover()
            network.settle()
            if report.clean and not report.ended and not report.findings:
                break
            network.now += 60
        else:
            pytest.fail(f"still in doubt: {report}")
        self.manager.close()
        network.now += LONG_S
        network.node.resource.tick()
        network.settle()

    def check(self, told: str, where: str) -> None:
        """As it says above."""
        committed = "row" in self.store.data
        assert told in {"unknown", "committed" if committed else "rolled back"}, where
        assert self.look("y") == (["M2"] if committed else []), where
        assert self.look("x") == (["M3"] if committed else ["M1", "M3"]), where
        (body,) = self.look("xabridge.tokens.0")
        token = Token.decode(body)
        assert token.decided == (), where
        assert len(self.look("xabridge.tokens")) == 1, where
        assert [str(branch) for branch in self.network.node.registry] == [], where
        for queue in self.network.node.resource.queues.values():
            assert (queue.held, queue.pending) == (0, 0), f"{queue.name}, {where}"
        assert not self.store.in_doubt, where


def campaign(kind: Kind, options: str = OPTIONS["plain"], *, at_once: bool = True) -> Counter[str]:
    """A fault at every boundary in turn; how often the application was told what."""
    heard: Counter[str] = Counter()
    for at in range(1, 1000):
        field = Field(options)
        field.network.boundaries, field.network.fault = 0, Fault(kind, at)
        told = field.transaction()
        struck = field.network.boundaries >= at
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


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", Kind)
def test_a_fault_at_every_boundary(kind: Kind, options: str) -> None:
    heard = campaign(kind, options)
    assert ("unknown" in heard) == (kind is not Kind.SLOW)
    assert ("rolled back" in heard) == (kind is not Kind.SLOW)
