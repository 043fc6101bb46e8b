"""These tests run the receive loop of a worker without I/O: which messages are handled together, which wait, and which
become dead letters.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.cases import each
from tm import ConfigurationError, ConsumerSettings
from tm.consumer.history import History
from tm.consumer.receive_loop import receive_loop
from tm.consumer.states import CONSUMER, ConsumerState, ConsumerVerb
from xa import Code, xa_error
from xa.coroutines import drive, suspension
from xa.machine import advance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SEEDS = range(int(os.environ.get("XABRIDGE_SEED", "0")), int(os.environ.get("XABRIDGE_SEED", "0")) + 50)


@dataclass(eq=False)
class Told:
    """A message."""

    number: int
    delivery_count: int = 0


@dataclass
class Queue:
    """A queue with one worker, whose handler refuses some messages always, and fails now and then."""

    settings: ConsumerSettings
    poison: frozenset[int]
    waiting: list[Told]
    dice: random.Random
    trouble: float = 0.0
    handled: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    tried: set[int] = field(default_factory=set)
    final: frozenset[int] = frozenset()
    """The messages whose first failure shows that no other attempt can help."""

    def run(self) -> None:
        """Until nothing is left."""
        drive(receive_loop(self, self.settings, 60.0, lambda: not self.waiting))

    async def receive(self, count: int, *, check: bool) -> Sequence[Told]:  # noqa: ARG002
        return self.waiting[:count]

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def handle(self, messages: Sequence[Any]) -> Exception | None:
        if self.poison.intersection(message.number for message in messages) or self.dice.random() < self.trouble:
            self.tried.update(message.number for message in messages)
            if len(messages) == 1:
                messages[0].delivery_count += 1
            return LookupError("no")
        self.take(messages, self.handled)
        return None

    async def give_back(self, messages: Sequence[Any]) -> Exception | None:  # noqa: ARG002
        return None

    def history(self, message: Any) -> History:
        deliveries = message.delivery_count
        is_dead = deliveries >= self.settings.max_deliveries or (deliveries > 0 and message.number in self.final)
        return History(deliveries, is_dead, message.number in self.tried, deliveries > 0 and not is_dead)

    async def put_off(self, messages: Sequence[Any], wait_s: float) -> Exception | None:  # noqa: ARG002
        raise AssertionError

    async def refuse(self, messages: Sequence[Any]) -> Exception | None:
        for message in messages:
            assert message.delivery_count == (1 if message.number in self.final else self.settings.max_deliveries)
        self.take(messages, self.dead)
        return None

    def take(self, messages: Any, into: list[int]) -> None:
        into += [message.number for message in messages]
        self.waiting = [message for message in self.waiting if message not in messages]


@each("seed", SEEDS)
def test_poison_is_dead_lettered_and_takes_nothing_with_it(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randrange(1, 60)
    poison = frozenset(dice.sample(range(count), dice.randrange(min(count, 6))))
    settings = ConsumerSettings("q", batch=dice.randrange(1, 20), max_deliveries=dice.randrange(2, 6))
    queue = Queue(settings, poison, [Told(number) for number in range(count)], dice)
    queue.run()
    assert sorted(queue.dead) == sorted(poison), f"seed {seed}"
    assert sorted(queue.handled) == sorted(set(range(count)) - poison), f"seed {seed}"


@each("seed", SEEDS)
def test_whatever_fails_now_and_then_every_message_comes_to_one_end(seed: int) -> None:
    dice = random.Random(seed)
    settings = ConsumerSettings("q", batch=7, max_deliveries=4)
    queue = Queue(settings, frozenset({3, 4}), [Told(number) for number in range(40)], dice, trouble=0.2)
    queue.run()
    assert sorted(queue.dead + queue.handled) == list(range(40)), f"seed {seed}"
    assert {3, 4} <= set(queue.dead)
    assert max(queue.pauses, default=0) <= settings.retry_most_s


def test_a_batch_with_a_message_that_failed_before_is_given_back_and_received_one_by_one() -> None:
    """Otherwise the failure of one would count as a delivery of the others."""
    first, again = Told(1), Told(2, 1)
    effects = played(ConsumerSettings("q", batch=10), [first, again], None, [first], None)
    assert effects == [
        Receive(10, check=False),
        GiveBack([first, again]),
        Receive(1, check=False),
        Handle([first]),
        Receive(10, check=False),
    ]


@dataclass(frozen=True)
class Receive:
    count: int
    check: bool


@dataclass(frozen=True)
class Handle:
    messages: Sequence[Any]


@dataclass(frozen=True)
class Refuse:
    messages: Sequence[Any]


@dataclass(frozen=True)
class GiveBack:
    messages: Sequence[Any]


@dataclass(frozen=True)
class PutOff:
    messages: Sequence[Any]
    wait_s: float


@dataclass(frozen=True)
class Pause:
    seconds: float


class Played:
    """Ports that have these answers, in this order; `asked` is what was asked."""

    def __init__(self, answers: list[Any], known: Mapping[int, History] | None = None) -> None:
        self.answers = answers
        self.asked: list[Any] = []
        self.known = dict(known or {})

    async def _answer(self, asked: Any) -> Any:
        self.asked.append(asked)
        if not self.answers:
            await suspension()
        return self.answers.pop(0)

    async def receive(self, count: int, *, check: bool) -> Any:
        return await self._answer(Receive(count, check))

    def history(self, message: Any) -> History:
        count = message.delivery_count
        return self.known.get(message.number, History(count, is_apart=count > 0, waits=count > 0))

    async def put_off(self, messages: Sequence[Any], wait_s: float) -> Any:
        return await self._answer(PutOff(messages, wait_s))

    async def handle(self, messages: Sequence[Any]) -> Any:
        return await self._answer(Handle(messages))

    async def refuse(self, messages: Sequence[Any]) -> Any:
        return await self._answer(Refuse(messages))

    async def give_back(self, messages: Sequence[Any]) -> Any:
        return await self._answer(GiveBack(messages))

    async def pause(self, seconds: float) -> None:
        await self._answer(Pause(seconds))


def played(
    settings: ConsumerSettings,
    *answers: Any,
    stops_after: int = 100,
    known: Mapping[int, History] | None = None,
    dice: float = 0.5,
) -> list[Any]:
    """What is asked when these are the answers."""
    asked = 0

    def stopping() -> bool:
        nonlocal asked
        asked += 1
        return asked > stops_after

    ports = Played(list(answers), known)
    steps = receive_loop(ports, settings, 60.0, stopping, lambda: dice)
    with suppress(StopIteration):
        steps.send(None)  # it stops where the answers end
    steps.close()
    return ports.asked


def test_a_failure_of_the_message_is_waited_for_once() -> None:
    """After it the worker does not pause: the message waits when it is delivered again, whoever gets it."""
    settings = ConsumerSettings("q", retry_jitter=0, retry_first_s=2.0, timeout_s=60.0)
    deliveries = [Told(1, count) for count in range(4)]
    answers: list[Any] = []
    for message in deliveries:
        answers += [[message], *([None] if message.delivery_count else []), LookupError("no")]
    effects = played(settings, *answers)
    assert [effect for effect in effects if isinstance(effect, Pause)] == [Pause(2.0), Pause(4.0), Pause(8.0)]


def test_after_an_outage_what_was_used_is_tried_first_and_the_pause_grows() -> None:
    settings = ConsumerSettings("q", batch=10, retry_jitter=0, retry_first_s=1.0)
    down = xa_error(Code.XAER_RMFAIL, "down")
    message = Told(1)
    effects = played(settings, [message], down, None, down, None, down, None, [message], None)
    assert effects == [
        Receive(10, check=False),
        Handle([message]),
        Pause(1.0),
        Receive(1, check=True),
        Pause(2.0),
        Receive(1, check=True),
        Pause(4.0),
        Receive(1, check=True),
        Handle([message]),
        Receive(10, check=False),
    ]


def test_a_batch_that_fails_is_tried_one_by_one_without_a_wait() -> None:
    first, second = Told(1), Told(2)
    effects = played(ConsumerSettings("q", batch=10), [first, second], LookupError("no"), [first], None)
    assert effects == [
        Receive(10, check=False),
        Handle([first, second]),
        Receive(1, check=True),
        Handle([first]),
        Receive(10, check=False),
    ]


def test_no_message_is_judged_by_another_one() -> None:
    """The first one is dead, or was tried before: the others have nothing to do with it."""
    dead, fresh = Told(1), Told(2)
    for known in (History(5, is_dead=True, is_apart=True), History(3, is_apart=True)):
        effects = played(ConsumerSettings("q", batch=10), [dead, fresh], None, known={1: known})
        assert effects[1:3] == [GiveBack([dead, fresh]), Receive(1, check=False)]


def test_a_consumer_that_stops_gives_back_what_it_has_not_begun() -> None:
    settings = ConsumerSettings("q", batch=10, retry_jitter=0)
    message = Told(1, 1)
    effects = played(settings, [message], None, stops_after=1)
    assert effects == [Receive(10, check=False), Pause(0.1), GiveBack([message])]


def test_a_message_that_is_dead_is_refused_without_a_wait() -> None:
    message = Told(1, 5)
    known = {1: History(5, is_dead=True, is_apart=True)}
    assert played(ConsumerSettings("q"), [message], known=known)[1] == Refuse([message])


@pytest.mark.parametrize("waits", ["worker", "broker"])
@pytest.mark.parametrize("most_s", [0.05, 1.0, 30.0, 86_400.0])
@pytest.mark.parametrize("timeout_s", [0.1, 60.0, 7200.0])
def test_no_wait_is_longer_than_documented(waits: Any, most_s: float, timeout_s: float) -> None:
    settings = ConsumerSettings("q", retry_waits=waits, retry_most_s=most_s)
    for number in range(1, 100):
        wait_s = settings.wait_s(number, timeout_s, lambda: 0.0)
        assert wait_s <= settings.wait_s(number + 1, timeout_s, lambda: 0.0) <= most_s
        assert wait_s == min(0.1 * 2 ** (number - 1), most_s, timeout_s / 4 if waits == "worker" else most_s)
        assert settings.pause_s(number, timeout_s, lambda: 0.0) <= min(most_s, timeout_s / 4)
        assert settings.wait_s(number, timeout_s, lambda: 1.0) == pytest.approx(0.8 * wait_s)
        assert 0 <= settings.conflict_s(number) <= 1.0


def test_a_first_wait_that_no_worker_can_hold_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"retry_first_s is 600, .* at most 15 s.* retry_waits to \"broker\""):
        ConsumerSettings("orders", retry_first_s=600).check_waits(60.0)
    ConsumerSettings("orders", retry_first_s=15).check_waits(60.0)
    ConsumerSettings("orders", retry_first_s=600, retry_waits="broker").check_waits(60.0)
    ConsumerSettings("orders").check_waits(0.1)  # the default is cut


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"batch": 501}, "batch is 501: expected 1 to 500"),
        ({"max_deliveries": True}, "max_deliveries is True"),
        ({"retry_first_s": 0}, "retry_first_s is 0"),
        ({"timeout_s": -1}, "timeout_s is -1"),
        ({"takes": "all"}, "takes is 'all'"),
        ({"retry_jitter": 1.5}, "retry_jitter is 1.5: expected 0 to 1"),
        ({"retry_waits": "nowhere"}, "retry_waits is 'nowhere'"),
        ({"retry_for_s": 0}, "retry_for_s is 0"),
        ({"retry_on": "TimeoutError"}, "retry_on is 'TimeoutError': expected classes of exceptions"),
        ({"dead_on": (ValueError, 7)}, "dead_on is .*: expected classes of exceptions"),
    ],
)
def test_settings_that_are_wrong_are_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        ConsumerSettings("orders", **settings)


def test_the_states_of_a_consumer() -> None:
    state = CONSUMER.initial
    for verb, target in (
        (ConsumerVerb.START, ConsumerState.RUNNING),
        (ConsumerVerb.STOP, ConsumerState.STOPPING),
        (ConsumerVerb.END, ConsumerState.STOPPED),
        (ConsumerVerb.STOP, ConsumerState.STOPPED),
    ):
        state = advance(CONSUMER, state, verb)
        assert state is target
    assert CONSUMER.refusal(ConsumerState.STOPPED, ConsumerVerb.START) is not None


def test_what_will_fail_again_is_put_away_without_another_attempt_or_wait() -> None:
    settings = ConsumerSettings("q", batch=4, retry_first_s=1.0)
    queue = Queue(
        settings, frozenset({2}), [Told(number) for number in range(5)], random.Random(1), final=frozenset({2})
    )
    queue.run()
    assert queue.dead == [2]
    assert sorted(queue.handled) == [0, 1, 3, 4]


def test_the_wait_before_another_attempt_grows_is_bounded_and_in_part_left_to_chance() -> None:
    settings = ConsumerSettings("q", retry_jitter=0, retry_first_s=0.5, retry_most_s=100.0, max_deliveries=1000)
    waits = [played(settings, [Told(1, deliveries)])[1] for deliveries in (1, 2, 3, 4, 500)]
    assert waits == [Pause(0.5), Pause(1.0), Pause(2.0), Pause(4.0), Pause(15.0)]  # a quarter of the transaction's 60 s
    settings = ConsumerSettings("q", retry_first_s=1.0, retry_jitter=0.5)
    for dice, wait_s in ((0.0, 4.0), (0.5, 3.0), (1.0, 2.0)):
        assert played(settings, [Told(1, 3)], dice=dice)[1] == Pause(wait_s)


def test_after_a_conflict_the_worker_pauses_for_a_short_time_that_grows() -> None:
    message, conflict = Told(1), xa_error(Code.XA_RBDEADLOCK, "no")
    effects = played(ConsumerSettings("q"), [message], conflict, None, [message], conflict, None, [message], None)
    assert effects == [
        Receive(1, check=False), Handle([message]), Pause(0.01),
        Receive(1, check=True), Handle([message]), Pause(0.02),
        Receive(1, check=True), Handle([message]), Receive(1, check=False),
    ]  # fmt: skip


def test_what_waits_at_the_broker_lets_the_worker_go_on() -> None:
    settings = ConsumerSettings("q", retry_waits="broker", retry_first_s=90.0, retry_most_s=900.0, retry_jitter=0)
    new, again, later = Told(1), Told(1, 1), Told(2)
    put_off_before = Told(3)
    effects = played(
        settings, [new], LookupError("no"), [again], None, [later], None, [put_off_before], None,
        known={3: History(2, is_apart=True)},
    )  # fmt: skip
    assert effects == [
        Receive(1, check=False),
        Handle([new]),
        Receive(1, check=True),  # it may have been an outage that the handler hides
        PutOff([again], 90.0),
        Receive(1, check=True),
        Handle([later]),
        Receive(1, check=False),
        Handle([put_off_before]),  # its wait is over
        Receive(1, check=False),
    ]


def test_a_worker_that_can_not_put_off_waits() -> None:
    settings = ConsumerSettings("q", retry_waits="broker", retry_jitter=0)
    again = Told(1, 1)
    effects = played(settings, [again], LookupError("no"), None)
    assert effects[1:3] == [PutOff([again], 0.1), Pause(0.1)]
