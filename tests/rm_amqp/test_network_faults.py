"""One transaction of the most common use case over a network in memory, with a fault at every boundary in turn.

Whatever happens, and wherever: all of its parts are done, or none; that is what the application was told, unless it
was told that it is unknown; and recovery finishes it, so that nothing is left.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from rm_amqp import Message, NoMessage
from tests.rm_amqp.client import RMID, new_xid
from tests.rm_amqp.network import Fault, Kind, Network
from tm import OutcomeUnknown, RolledBack, TransactionManager
from tm.resources import ResourceConfig
from xa import TMONEPHASE, TMSUCCESS, XaError
from xa.reference import ReferenceFactory, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

OPTIONS = ["timeout=20", "timeout=20&ahead=true&prefetch=10"]
LONG_S = 7200
MOST_PASSES = 10


class Field:
    """Two queues, a database, a manager."""

    def __init__(self, folder: Path, options: str) -> None:
        self.network = Network()
        self.store = ReferenceStore("shop")
        self.url = f"amqp://memory/?{options}"
        self._put(["M1", "M3"])
        self.manager = TransactionManager(
            "sim-1",
            f"file://{folder}",
            {
                "broker": ResourceConfig(self.url, factory=self.network.resource),
                "shop": ResourceConfig(self.store.url, factory=ReferenceFactory(self.store)),
            },
            clock=self.network.monotonic,
            sleep=self.network.sleep,
            background=False,
        )

    def _put(self, bodies: Iterable[str]) -> None:
        rm = self.network.resource()
        rm.open(self.url, RMID)
        rm.start(xid := new_xid(), RMID)
        for body in bodies:
            rm.session(RMID).send("x", Message(body))
        rm.end(xid, RMID, TMSUCCESS)
        rm.commit(xid, RMID, TMONEPHASE)
        rm.close("", RMID)

    def look(self, queue: str) -> list[object]:
        """What is available."""
        rm = self.network.resource()
        rm.open(self.url, RMID)
        rm.start(xid := new_xid(), RMID)
        found: list[object] = [message.body for message in rm.session(RMID).browse(queue)]
        rm.end(xid, RMID, TMSUCCESS)
        rm.commit(xid, RMID, TMONEPHASE)
        rm.close("", RMID)
        return found

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

    def recover(self) -> None:
        """Everybody can be reached again; the manager recovers."""
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
        assert [str(branch) for branch in self.network.node.registry] == [], where
        for queue in self.network.node.resource.queues.values():
            assert (queue.held, queue.pending) == (0, 0), where
        assert not self.store.in_doubt, where


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", Kind)
def test_a_fault_at_every_boundary(tmp_path: Path, kind: Kind, options: str) -> None:
    heard: Counter[str] = Counter()
    for at in range(1, 1000):
        field = Field(tmp_path / str(at), options)
        field.network.boundaries, field.network.fault = 0, Fault(kind, at)
        told = field.transaction()
        struck = field.network.boundaries >= at
        field.recover()
        field.check(told, f"{kind.name} at boundary {at}, {options}")
        heard[told] += 1
        if not struck:
            break
    assert told == "committed"
    assert at > 20, "there are boundaries"
    assert ("rolled back" in heard) == (kind is not Kind.SLOW)
