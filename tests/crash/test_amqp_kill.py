"""These tests move messages from one broker to another, each in a process of its own: in two phases with a log, or the
first broker decides by local transactions. At steps of the transaction in turn they kill with SIGKILL a broker, the
client, or the client and both brokers at the same moment.

After recovery every message must be at one of the two brokers, once, and the outcomes that the application got must be
true. (What was ended and never prepared is available again when the timeout of its branch has passed.)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rm_amqp.decider.tokens import Token
from tests.crash.forked import ForkedProcess
from tests.rm_amqp.client import RMID, Client
from tests.simulation.seeds import EVERY_POINT
from tests.waiting import until
from xa import TMENDRSCAN, TMSTARTRSCAN
from xabridge.testing.ports import free_port

PATIENCE_S = 60
COUNT = 2
PER_STEP = 12
STEPS = (
    *("before start in", "after start in", "before start out", "after start out"),
    *("before work", "between work", "after work"),
    *("before end in", "after end in", "before end out", "after end out"),
    *("before prepare in", "after prepare in", "before prepare out", "after prepare out"),
    *("before complete in", "after complete in", "before force", "after force"),
    *("before commit in", "after commit in", "before commit out", "after commit out"),
)
DECIDER_STEPS = (
    *("before start in", "after start in", "between work", "before end in", "after end in"),
    *("before prepare out", "after prepare out", "before decide in", "before token", "after token"),
    *("before discharge", "after discharge", "answered discharge", "after decide in"),
    *("before commit out", "after commit out", "before end_decisions in"),
)


def some_of(steps: tuple[str, ...], first: int) -> tuple[str, ...]:
    """All with XABRIDGE_POINTS=all, else every third one: other victims die at those between them."""
    return steps if EVERY_POINT else steps[first::3]


class Site:
    """A broker at a fixed port, which somebody else may kill."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.deaths = 0
        self.address = f"127.0.0.1:{free_port()}"
        self._folder = folder
        self._start()

    def _start(self) -> None:
        """Starts it, and waits until it listens."""
        store, errors = f"sqlite:///{self._folder}/store.db", self._folder / "broker.err"
        self._process = ForkedProcess("dtx.broker.command", "--store", store, "--listen", self.address, errors=errors)
        assert self._process.stdout.readline(), errors.read_text()

    @property
    def pid(self) -> str:
        """Whom to kill."""
        return str(self._process.pid)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()

    def come_back(self) -> None:
        """Starts it again, if it was killed."""
        if not self._process.running:
            self._process.close()
            self._start()
            self.deaths += 1

    def remove(self) -> None:
        """At the end."""
        self._process.close()

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Somebody who looks."""
        client = Client(self.address)
        try:
            yield client
        finally:
            client.rm.close("", RMID)


def hear(process: ForkedProcess, told: dict[str, str]) -> None:
    """Notes what a mover is told, until it ends."""
    for line in process.lines():
        body, _, what = line.rstrip("\n").partition(" ")
        if what != "rolled back" or body not in told:
            told[body] = what


def check_moved(messages: list[str], left: list[str], moved: list[str], told: dict[str, str]) -> None:
    """Every message is at one of two places, once, as it was told."""
    assert sorted(left + moved) == sorted(messages)
    for body, what in told.items():
        if what != "unknown" and body:
            assert (body in moved) == (what == "committed"), f"{body} was told {what}"


class Field:
    """Two brokers, and what the movers were told. `child` is the module that moves."""

    def __init__(self, folder: Path, child: str = "tests.crash.amqp_child", source: Any = None) -> None:
        self._child = child
        self.source: Any = source or Site(folder / "in")
        self.target = Site(folder / "out")
        self.sites: dict[str, Any] = {"in": self.source, "out": self.target}
        self._folder = folder
        self.told: dict[str, str] = {}
        self.messages: list[str] = []

    def feed(self, step: str) -> None:
        """Messages to move."""
        new = [f"{step} {number}".replace(" ", "-") for number in range(PER_STEP)]
        self.messages += new
        self.put(new)

    def put(self, bodies: list[str]) -> None:
        """Puts them into the source."""
        with self.source.client() as client:
            client.put("x", bodies)

    def run(self, point: str, *victims: str) -> int:
        """One mover; its exit code. Whoever is killed is started again meanwhile."""
        pids = [victim if victim == "self" else self.sites[victim].pid for victim in victims]
        arguments = [self.source.address, self.target.address, str(self._folder / "log"), point, *pids]
        gone = threading.Event()

        def restart() -> None:
            while not gone.wait(0.05):
                for site in self.sites.values():
                    site.come_back()

        process = ForkedProcess(self._child, *arguments)
        nurse = threading.Thread(target=restart)
        nurse.start()
        try:
            hear(process, self.told)
            return process.wait(PATIENCE_S)
        finally:
            process.close()
            gone.set()
            nurse.join()
            for site in self.sites.values():
                site.come_back()

    def close(self) -> None:
        """The end of the sites."""
        for site in self.sites.values():
            site.remove()

    def recover(self, where: str) -> None:
        """A manager of the same node recovers."""
        assert self.run("recover") == 0, where

    def check(self) -> None:
        with self.source.client() as source, self.target.client() as target:
            # What was never prepared is there again when the time of its branch has passed.
            until(lambda: len(source.look("x") + target.look("y")) >= len(self.messages), "some messages are nowhere")
            left, moved = source.look("x"), target.look("y")
            for client in (source, target):
                assert not client.rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN)
        assert left == [body for body in self.messages if body in left], "in their order"
        check_moved(self.messages, left, moved, self.told)


class DecidingField(Field):
    """The source decides: in the end every decision has ended too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "tests.crash.decider_child")

    def check(self) -> None:
        super().check()
        with self.source.client() as source:
            for slot in range(3):
                (body,) = source.look(f"xabridge.tokens.{slot}")
                assert Token.decode(body).decided == ()


WAYS = {"two-phase": (Field, STEPS), "decider": (DecidingField, DECIDER_STEPS)}
EACH = pytest.mark.parametrize("way", WAYS)
KILLED = [
    pytest.param("in", "two-phase"),
    pytest.param("out", "decider"),
    pytest.param("in", "decider", marks=pytest.mark.long),  # both are killed there with the client
    pytest.param("out", "two-phase", marks=pytest.mark.long),
]


@pytest.fixture
def field(tmp_path: Path, way: str) -> Iterator[Field]:
    with closing(WAYS[way][0](tmp_path)) as field:
        yield field


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "way"), KILLED)
def test_a_broker_is_killed(field: Field, victim: str, way: str) -> None:
    """The application goes on when it is back."""
    steps = some_of(WAYS[way][1], 0)
    for deaths, step in enumerate(steps, 1):
        field.feed(step)
        assert field.run(f"{step} {COUNT}", victim) == 0, step
        assert field.sites[victim].deaths == deaths, step
    field.recover(way)
    field.check()
    assert sum(told == "committed" for told in field.told.values()) >= 3 * len(steps)


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("victims", [("self",), ("in", "out", "self")], ids=["client", "all"])
def test_the_client_is_killed(field: Field, victims: tuple[str, ...], way: str) -> None:
    """Alone, or with both brokers at the same moment."""
    for step in some_of(WAYS[way][1], 1 if victims == ("self",) else 2):
        field.feed(step)
        assert field.run(f"{step} {COUNT}", *victims) == -9, step
        field.recover(step)
    field.check()
