"""These tests move messages between two brokers of different kinds in one transaction: Qpid Broker-J over AMQP 0-10,
and the broker of this project over AMQP 1.0. In each phase of the transaction, before and after a broker has done its
part, they kill one of the brokers.

After recovery every message must be at one of the brokers, once, and the outcomes that the application got must be
true. (What was ended and never prepared is available again when the timeout of its branch has passed.)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from rm_amqp import AmqpResource, Message
from rm_amqp.amqp010.driver import QpidDriver
from rm_amqp.amqp010.resource import QpidResource
from rm_amqp.driver import AmqpDriver
from rm_amqp.errors import Cause, ConnectionLost, lost_error
from tests.crash.test_amqp_kill import Site, check_moved
from tests.simulation.seeds import EVERY_POINT
from tm import OutcomeUnknown, RolledBack, TransactionManager
from tm.resources import ResourceConfig
from xa import TMUSEASYNC, XaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.broker_j import BrokerJ
    from xa import Code, Registrar, Xid
    from xa.driver import Pending

PATIENCE_S = 60
PHASES = ("work", "end", "prepare", "commit")


class Strike:
    """Kills something, once, at a point: a phase of one resource, before it or after it."""

    def __init__(self) -> None:
        self.point: tuple[str, str, bool] | None = None
        self.kill: Callable[[], None] = lambda: None
        self.struck = False

    def reached(self, resource: str, phase: str, *, before: bool) -> bool:
        """Whether the test struck here."""
        if self.point != (resource, phase, before):
            return False
        self.point, self.struck = None, True
        self.kill()
        return True

    def around(self, resource: str, phase: str, xid: Xid, call: Callable[[], Any]) -> Any:
        """The call. If the test strikes after it, its answer does not come."""
        self.reached(resource, phase, before=True)
        answer = call()
        if self.reached(resource, phase, before=False):
            raise lost_error(phase, ConnectionLost(Cause.LOST, "the test wants it"), xid)
        return answer


class StruckQpid(QpidDriver):
    """The driver of Broker-J."""

    strike: Strike

    def end(self, work: Any, *, fail: bool) -> Code:
        ended: Code = self.strike.around("qpid", "end", work.xid, lambda: super(StruckQpid, self).end(work, fail=fail))
        return ended

    def _complete(self, verb: str, commands: Any, xid: Xid) -> Code:
        complete = super()._complete
        code: Code = self.strike.around("qpid", verb, xid, lambda: complete(verb, commands, xid))
        return code


class StruckOurs(AmqpDriver):
    """The driver of the broker of this project."""

    strike: Strike

    def end(self, work: Any, *, fail: bool) -> Code:
        ended: Code = self.strike.around("ours", "end", work.xid, lambda: super(StruckOurs, self).end(work, fail=fail))
        return ended

    def complete(self, verb: str, command: Any, xid: Xid, *, later: bool) -> Code | Pending:
        del later
        complete = super().complete
        code: Code = self.strike.around("ours", verb, xid, lambda: complete(verb, command, xid, later=False))
        return code

    def end_and_prepare(self, work: Any, *, later: bool) -> Code | Pending:
        del later
        both = super().end_and_prepare
        code: Code = self.strike.around("ours", "prepare", work.xid, lambda: both(work, later=False))
        return code


class Field:
    """The two brokers, and a manager over them."""

    def __init__(self, folder: Path, broker_j: BrokerJ, name: str) -> None:
        self.broker_j, self.site = broker_j, Site(folder / "ours")
        self.queue = f"moved-{name}"
        broker_j.make(self.queue)
        self.strike = Strike()
        self.manager = self.new_manager(folder)
        self.messages: list[str] = []
        self.told: dict[str, str] = {}

    def new_manager(self, folder: Path) -> TransactionManager:
        """A manager whose drivers are struck."""

        def qpid(registrar: Registrar) -> QpidResource:
            driver = StruckQpid()
            driver.strike = self.strike
            return QpidResource(registrar, driver)

        def ours(registrar: Registrar) -> AmqpResource:
            resource = AmqpResource(registrar, TMUSEASYNC)
            driver = StruckOurs(TMUSEASYNC, resource.driver.connections.environment)
            driver.strike = self.strike
            resource.driver = driver
            return resource

        return TransactionManager(
            "two-kinds-1",
            f"file://{folder}/log",
            {
                "qpid": ResourceConfig(f"{self.broker_j.url}?timeout=10&branch_timeout=10", factory=qpid),
                "ours": ResourceConfig(f"amqp://{self.site.address}/?timeout=10&branch_timeout=10", factory=ours),
            },
            background=False,
        )

    def kill(self, victim: str) -> None:
        """kill -9."""
        if victim == "qpid":
            self.broker_j.kill()
        else:
            self.site.kill()

    def come_back(self) -> None:
        """Whoever was killed is started again."""
        self.broker_j.start()
        self.site.come_back()

    def put(self, source: str, body: str) -> None:
        """A message to move."""
        self.messages.append(body)
        with self.manager.begin() as tx:
            tx[source].send(self.queue, Message(body))

    def move(self, source: str, target: str) -> None:
        """One message changes its broker."""
        body = ""
        try:
            with self.manager.begin() as tx:
                body = str(tx[source].receive(self.queue, PATIENCE_S).body)
                self.strike.reached(source, "work", before=True)
                tx[target].send(self.queue, Message(body))
                self.strike.reached(source, "work", before=False)
            self.told[body] = "committed"
        except OutcomeUnknown:
            self.told[body] = "unknown"
        except (RolledBack, XaError):
            self.told[body] = "rolled back"

    def recover(self) -> None:
        """Until nothing is in doubt."""
        until = time.monotonic() + PATIENCE_S
        while not self.manager.recover().clean:
            assert time.monotonic() < until
            time.sleep(0.05)

    def look(self) -> tuple[list[str], list[str]]:
        """The messages of either broker."""
        with self.site.client() as client:
            ours = [str(body) for body in client.look(self.queue)]
        return [body.decode() for body in self.broker_j.bodies(self.queue)], ours

    def check(self, source: str) -> None:
        """Every message is somewhere, once, where the outcome says."""
        until = time.monotonic() + PATIENCE_S
        while True:  # until the unprepared branches' time has passed
            qpid, ours = self.look()
            if len(qpid + ours) >= len(self.messages) or time.monotonic() > until:
                break
            time.sleep(0.1)
        left, moved = (qpid, ours) if source == "qpid" else (ours, qpid)
        check_moved(self.messages, left, moved, self.told)


@pytest.fixture
def field(tmp_path: Path, broker_j: BrokerJ, request: pytest.FixtureRequest) -> Iterator[Field]:
    field = Field(tmp_path, broker_j, str(abs(hash(request.node.name))))
    try:
        yield field
    finally:
        field.manager.close()
        field.site.remove()


@pytest.mark.parametrize("victim", [pytest.param("qpid", marks=pytest.mark.long), "ours"])
@pytest.mark.parametrize("source", ["qpid", "ours"] if EVERY_POINT else ["qpid"])
def test_one_of_two_kinds_of_brokers_is_killed(field: Field, source: str, victim: str) -> None:
    target = "ours" if source == "qpid" else "qpid"
    field.strike.kill = lambda: field.kill(victim)
    struck = 0
    for phase in PHASES:
        for before in (True, False):
            field.put(source, f"{phase}-{'before' if before else 'after'}")
            field.strike.struck = False
            field.strike.point = (source if phase == "work" else victim, phase, before)
            field.move(source, target)
            struck += field.strike.struck
            field.strike.point = None
            field.come_back()
            field.recover()
    assert struck >= 2 * len(PHASES) - 2  # an end may ride with the prepare
    field.move(source, target)
    assert "committed" in field.told.values()
    field.check(source)
