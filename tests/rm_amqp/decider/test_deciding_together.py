"""These tests run several nodes, and several processes of one node, over one token queue. One process dies at some
point of its transaction. The others recover, at once and after its lease has ended, and go on with work of their own;
then its node comes back.

In every order the message, the row and the outcome must agree, and no decision may be left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from rm_amqp import DecidingBroker
from rm_amqp.decider.tokens import Token
from tests.rm_amqp.decider.test_deciding_faults import MOST_PASSES, World, outcome
from tests.simulation.seeds import EVERY_POINT
from tests.tm.wrapped import DECIDER_VERBS, hooked
from xabridge.testing.reference import ReferenceFactory

LEASE_OVER_S = 11
POINTS = ("before decide", "after decide", "after commit")
ALL = "a sibling and two other nodes"
WHO = {
    "another node": ["orders-2"],
    "a sibling": ["orders-1"],
    "another node and a sibling": ["orders-2", "orders-1"],
    ALL: ["orders-1", "orders-2", "orders-10"],
}
SOME = [
    pytest.param(who, id=name, marks=() if name == ALL else pytest.mark.slow)
    for name, who in WHO.items()
    if EVERY_POINT or name in {"another node", ALL}
]


class Killed(BaseException):
    """The process is gone."""


class Process:
    """A manager in a process of its own, which can be killed at a point."""

    def __init__(self, site: Site, node: str) -> None:
        self.point = ""
        self.meanwhile: Callable[[], object] | None = None
        self._client: DecidingBroker
        self._site = site
        self._dead = False
        self.manager = site.manager_of(node, self._broker, self._shop)

    def _broker(self, registrar: Any) -> Any:  # noqa: ARG002 — static
        self._client = self._site.network.decider()
        return hooked(self._pass, DECIDER_VERBS)(self._client)

    def _shop(self, registrar: Any) -> Any:
        return hooked(self._pass)(ReferenceFactory(self._site.store)(registrar))

    def _pass(self, when: str, verb: str) -> None:
        if self._dead:
            raise Killed
        if f"{when} {verb}" == self.point:
            self.point = ""
            if self.meanwhile is not None:
                self.meanwhile()
            else:
                self._dead = True
                self._client.drop()
                raise Killed

    def transaction(self, row: str) -> str:
        """One message becomes a row and an answer; what the application is told."""
        try:
            return outcome(self.manager, row, row)
        except Killed:
            return "killed"

    def recover(self) -> None:
        """One pass."""
        self.manager.recover()


class Site(World):
    """The processes over them."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        super().__init__(f"M{number}" for number in range(messages))

    def finish(self, nodes: Iterable[str]) -> None:
        """Every node comes back, and recovers until nothing is in doubt."""
        self.network.sleep(LEASE_OVER_S)
        for node in sorted(set(nodes)):
            process = Process(self, node)
            for _ in range(MOST_PASSES):
                process.recover()
                self.network.sleep(1)
            process.manager.close()

    def check(self, told: dict[str, str]) -> None:
        rows = set(self.store.data)
        answers, messages, tokens = self.look_into("y", "x", "xabridge.tokens.0")
        assert sorted(answers) == sorted(rows), "rows and answers are done together"
        assert len(messages) == self.messages - len(rows), "so are messages and rows"
        for row, what in told.items():
            if what in {"committed", "rolled back"}:
                assert (row in rows) == (what == "committed"), f"{row} was told {what}"
            assert what != "in part"
        assert not self.store.in_doubt
        assert [Token.decode(body).decided for body in tokens] == [()]


def one_dies(point: str, others: Sequence[str], *, at_once: bool, new_site: type[Site] = Site) -> None:
    """One process of orders-1 dies at `point`; the others recover, work, and recover."""
    site = new_site(messages=20)
    processes = [Process(site, node) for node in others]
    dies = Process(site, "orders-1")
    told = {"first": dies.transaction("first")}
    dies.point = point
    told["last"] = dies.transaction("last")
    assert told == {"first": "committed", "last": "killed"}

    for waits_s in (0, 0, LEASE_OVER_S) if at_once else (LEASE_OVER_S,):
        site.network.sleep(waits_s)
        for process in processes:
            process.recover()
            row = f"{process.manager.node} {len(told)}"
            told[row] = process.transaction(row)
            assert told[row] == "committed"
            process.recover()
    for process in processes:
        process.manager.close()
    site.finish(["orders-1", *others])
    site.check(told)
    assert ("last" in site.store.data) == (point != "before decide")


def others_recover_meanwhile(point: str, others: Sequence[str], *, stopped: bool, new_site: type[Site] = Site) -> None:
    """The same, while the first process lives: it stands still at `point`, for longer than its lease or not."""
    site = new_site(messages=20)
    processes = [Process(site, node) for node in others]
    first = Process(site, "orders-1")

    def meanwhile() -> None:
        if stopped:
            site.network.sleep(LEASE_OVER_S)
        for process in processes * 2:
            process.recover()

    first.point, first.meanwhile = point, meanwhile
    told = {"first": first.transaction("first")}
    overruled = stopped and point == "before decide" and "orders-1" in others
    assert told == {"first": "rolled back" if overruled else "committed"}
    told["next"] = first.transaction("next")
    assert told["next"] == "committed"
    for process in (first, *processes):
        process.recover()
        process.manager.close()
    site.finish(["orders-1", *others])
    site.check(told)


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
@pytest.mark.parametrize("others", SOME)
@pytest.mark.parametrize("point", POINTS)
def test_one_dies(point: str, others: Sequence[str], *, at_once: bool) -> None:
    one_dies(point, others, at_once=at_once)


@pytest.mark.parametrize(
    "stopped", [pytest.param(True, id="stopped for long"), pytest.param(False, id="slow", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("others", SOME)
@pytest.mark.parametrize("point", [*POINTS, "before commit"])
def test_one_stands_still(point: str, others: Sequence[str], *, stopped: bool) -> None:
    others_recover_meanwhile(point, others, stopped=stopped)
