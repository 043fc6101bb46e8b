"""These tests cover the queue of computations of passwords, over a clock that is moved: what strangers can order, and
who waits for it."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import pytest

from dtx.amqp.sasl.scram import Verifier
from dtx.broker.access.computations import Computations
from dtx.broker.access.connection_limits import ADDRESSES, ConnectionLimits, network_of
from dtx.broker.access.credentials import Credentials
from dtx.broker.access.permissions import Permissions
from dtx.broker.settings import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

TOOK_S: Final = 0.01
STORM: Final = "10.0.0.1"
ELSEWHERE: Final = "10.0.0.2"


class World:
    """The thread, the clock, and the addresses that have failed."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.worked_s = 0.0
        self.verdicts: list[tuple[str, bool, float]] = []
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.limits = ConnectionLimits(Limits(), Permissions({}), lambda: self.now, 0.25)
        self.computations = Computations(lambda: self.now, self.limits.failures, self._compute, self._later)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._calls, (self.now + seconds, self._number, call))

    def _compute(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.worked_s += TOOK_S
        self._later(TOOK_S, lambda: done(work()))

    def attempt(self, host: str, *, right: bool) -> object:
        """A peer says a password."""

        def done(result: object) -> None:
            if not result:
                self.limits.failed(host)
            self.verdicts.append((host, bool(result), self.now))

        return self.computations.ask(host, lambda: right, done)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._calls and self._calls[0][0] <= until:
            self.now, _, call = heappop(self._calls)
            call()
        self.now = until


def test_a_storm_gets_a_quarter_of_a_processor() -> None:
    world = World()
    for _ in range(1000):
        world.attempt(STORM, right=False)
    world.run(1.0)  # the first one is of an address that has not failed
    before = world.worked_s
    world.run(5.0)
    assert world.worked_s - before == pytest.approx(5.0 / 4, rel=0.05)


def test_of_ever_new_addresses_all_together_get_half_of_one() -> None:
    world = World()
    for number in range(2000):
        world.attempt(f"10.1.{number // 250}.{number % 250}", right=False)
    world.run(5.0)
    assert world.worked_s <= 5.0 / 2 + TOOK_S


def test_right_passwords_do_not_rest_and_do_not_wait_for_the_storm() -> None:
    """As those of a fleet that comes back after a restart."""
    world = World()
    for _ in range(100):
        world.attempt(ELSEWHERE, right=True)
    world.run(100 * TOOK_S + 0.001)
    assert len(world.verdicts) == 100
    for _ in range(200):
        world.attempt(STORM, right=False)
    world.run(1.0)
    world.verdicts.clear()
    asked_at = world.now
    world.attempt(ELSEWHERE, right=True)
    world.run(0.2)
    [at] = [at for host, _, at in world.verdicts if host == ELSEWHERE]
    assert at - asked_at <= 3 * TOOK_S + 1e-6  # one under way, the rest after it, and its own


def test_addresses_take_turns_and_all_of_them_are_served() -> None:
    world = World()
    for _ in range(100):
        for number in range(5):
            world.attempt(f"10.0.1.{number}", right=False)
    world.run(4.0)
    counts = Counter(host for host, _, _ in world.verdicts)
    assert len(counts) == 5
    assert max(counts.values()) - min(counts.values()) <= 1


def test_what_is_dropped_is_not_computed() -> None:
    """The peers of a storm leave: nothing is done for them any more. Who left while it was computed hears nothing, and
    the next one is served."""
    world = World()
    asked = [world.attempt(STORM, right=True) for _ in range(100)]
    world.attempt(ELSEWHERE, right=True)
    for one in asked:
        world.computations.drop(one)  # type: ignore[arg-type]
    assert len(world.computations) == 1
    world.run(10.0)
    assert [host for host, _, _ in world.verdicts] == [ELSEWHERE]
    assert world.worked_s == 2 * TOOK_S


def test_addresses_that_failed_are_remembered_in_a_bounded_number_and_for_a_minute() -> None:
    world = World()
    for number in range(10 * ADDRESSES):
        world.limits.failed(f"host {number}")
    assert sum(bool(world.limits.failures(f"host {number}")) for number in range(10 * ADDRESSES)) == ADDRESSES
    world.now += 61.0
    assert not world.limits.failures(f"host {10 * ADDRESSES - 1}")


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::ffff", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("/run/socket", "/run/socket"),
    ],
)
def test_where_a_peer_comes_from(host: str, network: str) -> None:
    assert network_of(host) == network


# -- what is known to be right
def verifier(password: str, salt: bytes = b"salt") -> Verifier:
    return Verifier.of(password, salt, 4096)


def test_a_password_that_was_right_is_remembered_until_it_changes() -> None:
    """One that was changed while it was computed is not."""
    known = verifier("right")
    credentials = Credentials({"user": known, "other": verifier("right")}, b"secret")
    assert not credentials.remembers("user", "right")
    credentials.remember("user", known, "right")
    known_now = {(user, said) for user in ("user", "other", "nobody") for said in ("right", "wrong")}
    assert [one for one in known_now if credentials.remembers(*one)] == [("user", "right")]
    for changed in (verifier("new"), known):
        credentials.set("user", changed)
        assert not credentials.remembers("user", "right")
    credentials.remember("user", known, "right")
    credentials.set("user", None)
    assert not credentials.remembers("user", "right")
    credentials.set("user", verifier("new"))
    credentials.remember("user", known, "right")
    assert not credentials.remembers("user", "right")


def test_the_password_is_nowhere_in_what_is_remembered() -> None:
    known = verifier("marked password")
    one, other = (Credentials({"user": known}, b"secret") for _ in range(2))
    for credentials in (one, other):
        credentials.remember("user", known, "marked password")
    assert one._right["user"] != other._right["user"]  # each process has a key of its own
    assert b"marked" not in one._right["user"]
