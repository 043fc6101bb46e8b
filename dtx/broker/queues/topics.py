"""Topics: a message that is posted to one goes to every subscription that stands when it is committed.

A topic has a name of words with dots between them: `topic:prices.eur`. A subscription is a queue of its own, from which
consumers take as from any other, with the name `topic:PATTERN::NAME`. In its pattern the word `*` stands for one word,
and `#` for any number of words. A subscription that does not last ends with its connection, and when the broker stops;
its messages are stored as those of all others are.

Which subscriptions get a message is found when its commit is written, and what is written then is all of it: the end of
the branch, and one message for each subscription, in one batch of the store. All this happens on the event loop, and
the store makes batches durable in their order. So a subscription stands from the moment at which it is made, and gets
every message whose commit comes later, and no other one. Its maker is answered when it is durable.

Those that stand when a message is posted say then whether they have room (`Topic.refusal`), and keep it. Those that
come later take the message in any case: it was voted for. The space that its copies need in the store is promised from
the moment at which it is posted.

A subscription is deleted when no prepared branch has taken messages from it, and stands until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.broker.queues.entry import Entry, write_post
from dtx.broker.queues.queue import Queue
from dtx.broker.queues.subscription import Subscription
from dtx.broker.settings import QueueSettings, TopicSettings, Unrouted, WhenSubscriptionFull
from dtx.protocol.conditions import Refusal, refused
from dtx.store.contract import PENDING, Batch, StoreDamaged
from xa import Code
from xa.topics import PRIVATE, SCHEME, SUBSCRIPTION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from dtx.broker.queues.queue import QueueOwner
    from dtx.store.contract import NotStored

    Answer = Callable[[Refusal | None], None]

COPY_OCTETS: Final = 256
"""The space in the store that a copy of a message needs beside its payload, and beside the name of its group."""
MAX_NAME: Final = 255
_STORED_TOPIC: Final = "topic"
"""What the store keeps of a topic, in place of what it keeps of a subscription."""


def topic_address(address: str, patterns: Iterable[str] = ()) -> str | None:
    """The one address of the topic, or of the topics, that an address names; None where it names a queue, as those of
    subscriptions and their dead letters do. `patterns`: which addresses without the prefix are topics."""
    name = _name_of(address)
    if SUBSCRIPTION in name:
        return None
    if name != address:
        return TOPIC + name
    words = address.split(".")
    return TOPIC + name if any(fits(pattern.split("."), words) for pattern in patterns) else None


def _name_of(address: str) -> str:
    return address.removeprefix(SCHEME if address.startswith(SCHEME) else TOPIC)


def subscription_address(address: str) -> tuple[str, str] | None:
    """The topic and the name of the subscription that an address names, None where it names none."""
    if not address.startswith(TOPIC):
        return None
    topic, separator, name = _name_of(address).partition(SUBSCRIPTION)
    return (TOPIC + topic, name) if separator else None


def is_pattern(topic: str) -> bool:
    """Whether the address of topics has wildcards."""
    return not {"*", "#"}.isdisjoint(topic.removeprefix(TOPIC).split("."))


def fits(pattern: list[str], words: list[str]) -> bool:
    """Whether the words of a name fit those of a pattern."""
    at = word = 0
    retry, taken = -1, 0
    while word < len(words):
        if at < len(pattern) and pattern[at] == "#":
            retry, taken = at, word
            at += 1
        elif at < len(pattern) and pattern[at] in {"*", words[word]}:
            at += 1
            word += 1
        elif retry >= 0:  # the last # takes one word more: what is before it fits as it is
            taken += 1
            at, word = retry + 1, taken
        else:
            return False
    return all(one == "#" for one in pattern[at:])


class PostedMessage:
    """A message on its way to a topic: which subscriptions `expect` it, and whether that is known; for those that
    depend on what is in it: whether they want it."""

    __slots__ = ("expect", "known", "wanted")

    def __init__(self, expect: list[Queue], *, known: bool) -> None:
        self.expect = expect
        self.known = known
        self.wanted: dict[Queue, bool] = {}


class Topic(Queue):
    """To transactions it is a queue to which messages are posted. Nothing ever stands in it."""

    def __init__(self, number: int, name: str, settings: TopicSettings, owner: QueueOwner, topics: Topics) -> None:
        super().__init__(number, name, QueueSettings(dead_letter=""), owner, lasting=True)
        self.kept = _STORED_TOPIC
        self.words = name.removeprefix(TOPIC).split(".")
        self.subscriptions: dict[Queue, None] = {}
        """Those that stand."""
        self.unrouted = 0
        """Messages that no subscription got."""
        self.dropped = 0
        """Messages that a subscription did not get, because it was full."""
        self._topic_settings = settings
        self._topics = topics
        self._posted: dict[Entry, PostedMessage] = {}

    # -- subscriptions
    def add(self, queue: Queue) -> None:
        """A subscription stands."""
        self.subscriptions[queue] = None
        self._topics.promise(len(self._posted))

    def remove(self, queue: Queue) -> None:
        """A subscription stands no more."""
        if self.subscriptions.pop(queue, self) is None:
            self._topics.promise(-len(self._posted))

    # -- messages
    @property
    def largest(self) -> int:
        if self._topic_settings.when_subscription_full is not WhenSubscriptionFull.REFUSE:
            return 0
        return min(filter(None, (queue.largest for queue in self.subscriptions)), default=0)

    def refusal(self, octets: int) -> str:
        """Why no message may be posted. A subscription that has a selector, and no room, refuses what it would not
        get."""
        settings = self._topic_settings
        if not self.subscriptions and settings.unrouted is Unrouted.REJECT:
            return f"{self.name} has no subscription"
        if settings.when_subscription_full is WhenSubscriptionFull.REFUSE:
            for queue in self.subscriptions:
                full = queue.refusal(octets)
                if full:
                    return full
        return ""

    def expect(self, entry: Entry) -> None:
        super().expect(entry)
        self._topics.promise(len(self.subscriptions))
        if entry.payload is None:  # it was posted before the broker was started
            self._posted[entry] = PostedMessage([], known=False)
            return

        takers = []
        drops = self._topic_settings.when_subscription_full is WhenSubscriptionFull.DROP
        for queue in self.subscriptions:
            if not self._wants(queue, entry.payload):
                continue
            if drops and queue.refusal(entry.size):
                self.dropped += 1
                continue
            takers.append(queue)
            queue.expect(entry)
        self._posted[entry] = PostedMessage(takers, known=True)

    def expect_no_more(self, entry: Entry) -> None:
        super().expect_no_more(entry)
        self._topics.promise(-len(self.subscriptions))
        for queue in self._posted.pop(entry).expect:
            queue.expect_no_more(entry)

    @staticmethod
    def _wants(queue: Queue, payload: bytes) -> bool:
        subscription = queue.subscription
        return subscription is None or subscription.selector is None or subscription.selector.matches(payload)

    def _undecided(self, entry: Entry) -> Iterator[Queue]:
        """The subscriptions that have not said whether they want a message: they came later, or it is not known."""
        posted = self._posted[entry]
        return (queue for queue in self.subscriptions if not posted.known or queue.number > entry.number)

    def lacks_payload(self, entry: Entry) -> bool:
        """Whether a message has to be read before its commit is written, because a selector depends on what it says."""
        if entry.payload is not None:
            return False
        wanted = self._posted[entry].wanted
        return any(
            queue not in wanted and queue.subscription is not None and queue.subscription.selector is not None
            for queue in self._undecided(entry)
        )

    def read(self, entry: Entry, payload: bytes | None) -> None:
        """A message was read. One that can't be is for all: it is seen there that it is damaged."""
        wanted = self._posted[entry].wanted
        for queue in self._undecided(entry):
            wanted[queue] = payload is None or self._wants(queue, payload)

    def _takers(self, entry: Entry) -> list[Queue]:
        posted, payload = self._posted[entry], entry.payload
        takers = [queue for queue in posted.expect if queue in self.subscriptions]
        undecided = self._undecided(entry)
        if payload is None:
            return takers + [queue for queue in undecided if posted.wanted.get(queue, True)]
        return takers + [queue for queue in undecided if self._wants(queue, payload)]

    def write_copies(self, batch: Batch, entry: Entry, *, stored: bool) -> list[Entry]:
        """Writes the commit of a message: its copies, each with its place in its queue. They share what is stored of
        it, if there are several. `stored`: it is in the store, as a message that a branch posts."""
        takers = self._takers(entry)
        if not takers:
            self.unrouted += 1
            if stored:
                batch.dequeue(entry.number, entry.size)
            return []
        if len(takers) == 1:
            copy = self._copy(entry, takers[0], entry.number)
            if stored:
                batch.place(copy.number, takers[0].number, copy.position, 0, copy.expires_ms, copy.due_ms)
            else:
                write_post(batch, copy)
            return [copy]

        if not stored:
            batch.enqueue(entry.number, self.number, PENDING, entry.payload or b"")
        batch.unpost(entry.number)
        copies = [self._copy(entry, queue, self._topics.number()) for queue in takers]
        for copy in copies:
            batch.copy(
                copy.number,
                copy.source,
                copy.queue.number,
                copy.position,
                copy.size,
                expires_ms=copy.expires_ms,
                due_ms=copy.due_ms,
                group=copy.group,
            )
        return copies

    def _copy(self, entry: Entry, queue: Queue, number: int) -> Entry:
        expires_ms, ttl_ms = entry.expires_ms, queue.settings.ttl_ms
        if not expires_ms and ttl_ms:
            expires_ms = self._owner.now_ms + ttl_ms
        copy = Entry(queue, number, entry.size, expires_ms, entry.payload, due_ms=entry.due_ms, group=entry.group)
        copy.source = entry.number
        queue.take_place(copy)
        return copy


class Topics:
    """Every topic and subscription. `number` gives out numbers; `holds` says whether a prepared branch has taken
    messages from a queue; `submit` makes a batch durable; `drop` lets a queue go that is deleted; `promise` keeps so
    much more space free in the store."""

    def __init__(
        self,
        settings: Mapping[str, TopicSettings],
        *,
        number: Callable[[], int],
        submit: Callable[[Batch, Callable[[NotStored | None], None]], None],
        drop: Callable[[Queue], None],
        promise: Callable[[int], None],
    ) -> None:
        self.number = number
        self.holds: Callable[[Queue], bool] = lambda _: False
        self.deleting: set[str] = set()
        """The names of subscriptions that are gone, and perhaps not from the store yet."""
        self._settings = settings
        self._submit = submit
        self._drop = drop
        self._promise = promise

        self._topics: dict[str, Topic] = {}
        self._of_name: dict[str, dict[Queue, None]] = {}
        """The subscriptions of one topic, by its name."""
        self._of_pattern: dict[Queue, list[str]] = {}
        """Those with a pattern, with its words."""
        self._leaving: dict[Queue, list[Answer]] = {}
        """Those that are to be deleted, and that prepared branches have taken messages from."""
        self._owed: list[tuple[str, Batch, list[Answer]]] = []
        """Deletions that the store did not take."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def promise(self, copies: int) -> None:
        """So many more copies of messages may have to be written."""
        if copies:
            self._promise(copies * COPY_OCTETS)

    def address(self, address: str) -> str | None:
        """`topic_address` with the patterns of the configuration."""
        return topic_address(address, self._settings)

    # -- topics
    def get(self, name: str) -> Topic | None:
        """The topic with this address, if there is one."""
        return self._topics.get(name)

    def make(self, number: int, name: str, owner: QueueOwner) -> Topic:
        """A new topic, or one from the store."""
        words = name.removeprefix(TOPIC).split(".")
        settings = next((one for pattern, one in self._settings.items() if fits(pattern.split("."), words)), None)
        topic = self._topics[name] = Topic(number, name, settings or TopicSettings(), owner, self)
        standing = [*self._of_name.get(name, ()), *(one for one, of in self._of_pattern.items() if fits(of, words))]
        for queue in sorted(standing, key=lambda queue: queue.number):
            topic.add(queue)
        return topic

    # -- subscriptions
    def named(self, name: str) -> list[Queue]:
        """The durable subscriptions with this name, of any topic."""
        standing = [*self._of_pattern, *(queue for queues in self._of_name.values() for queue in queues)]
        return [queue for queue in standing if queue.name.endswith(SUBSCRIPTION + name)]

    def stands(self, queue: Queue, subscription: Subscription) -> None:
        """A queue is a subscription from now on."""
        queue.subscription, queue.kept = subscription, subscription.encode()
        name = subscription.topic
        if is_pattern(name):
            words = self._of_pattern[queue] = name.removeprefix(TOPIC).split(".")
            for topic in self._topics.values():
                if fits(words, topic.words):
                    topic.add(queue)
            return
        self._of_name.setdefault(name, {})[queue] = None
        if name in self._topics:
            self._topics[name].add(queue)

    def _stands_no_more(self, queue: Queue, name: str) -> None:
        self._of_pattern.pop(queue, None)
        same = self._of_name.get(name, {})
        same.pop(queue, None)
        if not same:
            self._of_name.pop(name, None)
        concerned = self._topics.values() if is_pattern(name) else filter(None, (self._topics.get(name),))
        for topic in concerned:
            topic.remove(queue)

    def unsubscribe(self, queue: Queue, answer: Answer = lambda _: None, batch: Batch | None = None) -> None:
        """Deletes a subscription with its messages, when no prepared branch has taken any of them; `answer` is called
        when that is durable. Where none has, what `batch` says is durable with it."""
        if queue.deleted:
            answer(None)
        else:
            self._leaving.setdefault(queue, []).append(answer)
            self._let_go(queue, batch)

    def _let_go(self, queue: Queue, batch: Batch | None = None) -> None:
        subscription = queue.subscription
        if subscription is None or (subscription.durable and self.holds(queue)):
            return
        answers = self._leaving.pop(queue)
        if queue.deleted:
            self._answer(answers)
            return
        self._stands_no_more(queue, subscription.topic)
        batch = batch or Batch()
        queue.write_deletion(batch)
        self._drop(queue)
        self.deleting.add(queue.name)
        self._delete(queue.name, batch, answers)

    def _delete(self, name: str, batch: Batch, answers: list[Answer]) -> None:
        def done(error: NotStored | None) -> None:
            if error is not None:
                self._owed.append((name, batch, answers))
                return
            self.deleting.discard(name)
            self._answer(answers)

        # A copy, because what is submitted also gets the queues that are not stored yet: when it is tried again, some
        # of them may be deleted.
        self._submit(Batch.merged([batch]), done)

    @staticmethod
    def _answer(answers: list[Answer]) -> None:
        for answer in answers:
            answer(None)

    def go_on(self) -> None:
        """Deletes what could not be deleted before. To be called now and then."""
        for queue in tuple(self._leaving):
            self._let_go(queue)
        owed, self._owed = self._owed, []
        for name, batch, answers in owed:
            self._delete(name, batch, answers)


def check_name(topic: str, name: str, *, lasts: bool = True) -> str:
    """The name of the queue of a subscription. RefusedError where topic or name can't be one."""
    words = topic.removeprefix(TOPIC).split(".")
    full = f"{topic}{SUBSCRIPTION}{name}"
    if not all(words) or not full.isprintable() or len(full) > MAX_NAME:
        message = f"{full[:MAX_NAME]!r} is no subscription: a topic has words with dots between them"
        raise refused(Code.XAER_INVAL, message, condition=Condition.INVALID_FIELD)
    if not name or name.startswith(PRIVATE) is lasts:
        message = f"a durable subscription has a name, which does not begin with {PRIVATE}"
        raise refused(Code.XAER_INVAL, message, condition=Condition.INVALID_FIELD)
    return full


def check_topic(topic: str) -> None:
    """RefusedError where nothing can be posted to this address."""
    if is_pattern(topic):
        raise refused(Code.XAER_INVAL, f"{topic!r} has wildcards: they are for subscriptions, nothing is sent there")
    if not all(topic.removeprefix(TOPIC).split(".")) or len(topic) > MAX_NAME or not topic.isprintable():
        message = f"a topic's name has printable words with dots between them, and at most {MAX_NAME} characters"
        raise refused(Code.XAER_INVAL, message)


def private_name(name: str) -> str:
    """The name of a subscription that ends with its connection."""
    return PRIVATE + name


def restored_subscription(name: str, text: str) -> Subscription | None:
    """What the store says of a queue with this text: a subscription; None: a topic. StoreDamaged: neither."""
    if text == _STORED_TOPIC:
        return None
    address = subscription_address(name)
    if address is None:
        raise StoreDamaged(f"the store has {name!r} for a subscription: restore the store from a copy")
    return Subscription.decode(address[0], text)
