"""Messages: looked at page by page without their payloads, read one by one, moved, copied, retried and purged."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.values import Uint, Ulong
from dtx.broker.management.request import time_of
from dtx.broker.management.transfers import LOOKED_AT, Transfer, TransferRefused, result
from dtx.broker.queues.dead_letters import NOTHING_NOTED
from dtx.broker.queues.entry import Entry, write_post
from dtx.broker.queues.payloads import split_format
from dtx.broker.transactional_resource import fits_one_piece, not_stored
from dtx.protocol.conditions import Refusal, refused
from dtx.store.contract import CHUNK, Batch
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dtx.amqp.values import Map, Value
    from dtx.broker.management.request import Answer, ManagementRequest
    from dtx.broker.queues.dead_letters import DeadLetterGroup
    from dtx.broker.queues.queue import Queue
    from dtx.store.contract import NotStored

COPIED_AT_ONCE: Final = 100
COPIED_OCTETS: Final = 4 << 20
MAX_READ: Final = CHUNK
"""Octets of a message that can be read by management: larger ones are for consumers and browsers."""


def queue_of(request: ManagementRequest, name: str = "queue") -> Queue:
    """The lasting queue that an argument names."""
    wanted = request.text(name)
    queue = request.container.resource.queues.get(wanted)
    if queue is None or queue.closing:
        raise refused(Code.XAER_NOTA, f"there is no queue {wanted!r}")
    if not queue.lasting:
        raise refused(Code.XAER_INVAL, f"{wanted!r} is a node of a connection, and goes with it")
    return queue


# -- looking
def page(request: ManagementRequest) -> list[Value]:
    """A page of a queue's messages, in their order; with `ids`, of these only."""
    queue, ids = queue_of(request), request.text("ids", "")
    after, dead_letters = request.after, queue.dead_letters
    position = _hexadecimal(after) if after else -1
    ages = request.container.resource.ages

    def shown(entry: Entry) -> Map:
        origin = entry.origin or NOTHING_NOTED

        return {
            "id": f"{entry.number:x}",
            "position": f"{entry.position:x}",
            "state": entry.state.value,
            "octets": Ulong(entry.size),
            "deliveries": Ulong(entry.count),
            "posted": time_of(ages.since_ms(entry.number)),
            "since": time_of(ages.since_ms(entry.position)),
            "expires": time_of(entry.expires_ms),
            "due": time_of(entry.due_ms),
            "group": entry.group or None,
            "from": origin.queue or None,
            "why": origin.reason or None,
            "error": origin.error or None,
            "place": origin.place or None,
            "dead-letter-group": dead_letters.group_of(entry) if queue.is_dead_letter(entry) else None,
            "unreadable": entry.number in queue.unreadable,
        }

    if ids:
        found = [entry for entry in queue.find(_numbers(ids)) if entry.position > position]
        return request.page(found, shown)
    return [shown(entry) for entry in queue.page(position, request.count)]


def dead_letters(request: ManagementRequest) -> list[Value]:
    """A page of groups of dead letters, of all queues, or of `queue` only: by queue, then by id. `after` is both,
    with a slash in between. It costs what it tells, however many letters there are."""
    known = request.container.resource.queues
    name, _, group_id = request.after.rpartition("/")
    names = [queue_of(request).name] if request.text("queue", "") else sorted(one for one in known if one >= name)

    def found() -> Iterator[Map]:
        for one in names:
            if known[one].dead_letters.count:
                for group in known[one].dead_letters.groups():
                    if one != name or group.id > group_id:
                        yield _group(request, known[one], group)

    return request.page(found(), lambda one: one)


def _group(request: ManagementRequest, queue: Queue, group: DeadLetterGroup) -> Map:
    origin = group.origin
    return {
        "queue": queue.name,
        "id": group.id,
        "position": f"{queue.name}/{group.id}",
        "letters": Ulong(group.count),
        "from": origin.queue or None,
        "why": origin.reason or None,
        "error": origin.error or None,
        "place": origin.place or None,
        "latest": f"{group.latest:x}",
        "since": time_of(request.container.resource.ages.since_ms(group.position)),
        "until": f"{group.until:x}",
    }


def read(request: ManagementRequest, answer: Answer) -> None:
    """A message's octets, as they came, and its message-format where that is not 0."""
    queue = queue_of(request)
    entry = _one(request, queue)
    if entry.size > MAX_READ:
        message = f"the message has {entry.size} octets, and management reads up to {MAX_READ}: browse the queue"
        raise refused(Code.XAER_INVAL, message)

    def fetched(payload: bytes | None) -> None:
        if payload is None:
            message = f"message {entry.number:x} can't be read from the store, or has just left {queue.name}"
            answer(Refusal(Condition.INTERNAL_ERROR, message, Code.XAER_RMERR))
            return
        message_format, octets = split_format(payload)
        foreign: Map = {"format": Uint(message_format)} if message_format else {}
        answer({"octets": octets, "deliveries": Ulong(entry.count), **foreign})

    _fetch(request, entry, fetched)


def _one(request: ManagementRequest, queue: Queue) -> Entry:
    found = queue.find({_hexadecimal(request.text("id"))})
    if not found:
        raise refused(Code.XAER_NOTA, f"there is no message {request.text('id')} in {queue.name}")
    return found[0]


def _numbers(ids: str) -> set[int]:
    return {_hexadecimal(one) for one in ids.split(",")}


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise WireError(Condition.INVALID_FIELD, f"{text[:40]!r} is no message: expected its id") from None


# -- choosing
def chosen(request: ManagementRequest, queue: Queue) -> list[Entry]:
    """The messages that a request looks at: those of `ids`, or all that are there now."""
    ids = request.text("ids", "")
    return queue.find(_numbers(ids)) if ids else list(queue)


def _filter(request: ManagementRequest, queue: Queue) -> Callable[[Entry], bool]:
    """Whether a message is meant: it came no later than the one at the position `until`, or than the request. If the
    request is about a `group` of dead letters, it was in the group when that was shown with this position."""
    group, letters = request.text("group", ""), queue.dead_letters
    if group:
        shown_until = _hexadecimal(request.text("until"))
        return lambda entry: letters.was_shown(entry, group, shown_until)

    until = request.text("until", "")
    last = _hexadecimal(until) if until else queue.last_position
    return lambda entry: entry.position <= last


def asked_for(request: ManagementRequest) -> int:
    """How many messages were chosen by their ids; 0: they were not chosen so."""
    ids = request.text("ids", "")
    return len({_hexadecimal(one) for one in ids.split(",")}) if ids else 0


def _about(request: ManagementRequest, queue: Queue, **more: Any) -> dict[str, Any]:
    """What the audit log says of such a request."""
    details: dict[str, Any] = {"queue": queue.name, **more}
    for name in ("ids", "group", "most"):
        value = request.number(name, 0) if name == "most" else request.text(name, "")
        if value:
            details[name] = value if isinstance(value, int) else value[:200]
    return details


# -- changing
def move(request: ManagementRequest, answer: Answer) -> None:
    """To another queue."""
    queue, target = queue_of(request), queue_of(request, "to")
    if target is queue:
        raise refused(Code.XAER_INVAL, f"the messages are in {queue.name} already")
    _transfer(request, answer, queue, lambda _: target, _about(request, queue, to=target.name))


def purge(request: ManagementRequest, answer: Answer) -> None:
    """Deletes messages."""
    queue = queue_of(request)
    _transfer(request, answer, queue, lambda _: None, _about(request, queue))


def retry(request: ManagementRequest, answer: Answer) -> None:
    """Dead letters go back to where they came from, as if they had never been delivered. Of those that a consumer has
    sent, the name of their queue tells it."""
    queue = queue_of(request)
    resource = request.container.resource
    queues, by_name = resource.queues, resource.source_of_dead_letters(queue)
    fallback = queue_of(request, "to") if request.text("to", "") else None

    def target(entry: Entry) -> Queue | None:
        origin = entry.origin
        is_known = origin is not None and bool(origin.reason)  # what a sender has noted is its word only
        found = queues.get(origin.queue) if origin is not None and is_known else fallback or by_name
        if found is not None or fallback is not None:
            return found or fallback
        if not is_known:
            raise TransferRefused("it is not known where it came from: say where to with --to (field `to`)")
        raise TransferRefused("the queue that it came from is gone: name another one with --to (field `to`)")

    _transfer(request, answer, queue, target, _about(request, queue), anew=True)


def _transfer(
    request: ManagementRequest,
    answer: Answer,
    queue: Queue,
    target: Callable[[Entry], Queue | None],
    details: dict[str, Any],
    *,
    anew: bool = False,
) -> None:
    Transfer(
        request.container,
        queue,
        chosen(request, queue),
        target,
        answer,
        actor=request.actor,
        user=request.identity.name,
        what=request.text("operation"),
        details=details,
        anew=anew,
        asked_for=asked_for(request),
        is_meant=_filter(request, queue),
        most=request.number("most", 0),
        is_awaited=request.is_awaited,
    ).go_on()


# -- copying
def copy(request: ManagementRequest, answer: Answer) -> None:
    """To another queue, as new messages. Messages that somebody holds are copied as well."""
    queue, target = queue_of(request), queue_of(request, "to")
    _Copy(request, queue, target, answer).go_on()


class _Copy:
    """Reads a message, then the next one; what was read is written some at a time."""

    def __init__(self, request: ManagementRequest, queue: Queue, target: Queue, answer: Answer) -> None:
        self._question = request
        self._resource = request.container.resource
        self._audit = request.container.audit
        self._queue = queue
        self._target = target
        self._answer = answer

        self._is_meant = _filter(request, queue)
        self._left = chosen(request, queue)[::-1]
        self._most = request.number("most", 0)
        self._copies: list[Entry] = []
        self._octets = 0
        self._details = _about(request, queue, to=target.name)
        self._entry = 0
        self._done = 0
        self._why: dict[str, int] = {}
        self._asked_for = asked_for(request)

    def go_on(self) -> None:
        """The next message."""
        if not self._question.is_awaited():
            self._left.clear()
        looked_at = 0
        full = len(self._copies) >= COPIED_AT_ONCE or self._octets >= COPIED_OCTETS
        while self._left and not full:
            entry = self._left.pop()
            looked_at += 1
            if entry.queue is not self._queue or not self._is_meant(entry):
                if looked_at < LOOKED_AT:
                    continue
                self._question.container.continue_later(self, self._question.identity.name)
                return
            gone = self._target.deleted or self._target.closing
            if gone or self._target.refusal(entry.size):
                self._why[f"{self._target.name} is {'gone' if gone else 'full'}"] = len(self._left) + 1
                self._left.clear()
                break
            _fetch(self._question, entry, partial(self._fetched, entry))
            return

        if self._copies:
            self._write()
        else:
            self._answer(result(self._done, self._why, self._asked_for))

    def _fetched(self, entry: Entry, payload: bytes | None) -> None:
        if payload is not None and len(payload) == entry.size:  # or it went meanwhile
            target = self._target
            number, due_ms = self._resource.number(), entry.due_ms
            made = Entry(target, number, entry.size, entry.expires_ms, payload, due_ms=due_ms, group=entry.group)
            made.origin = entry.known_origin
            self._copies.append(made)
            self._octets += made.size
            target.expect(made)
            if self._done + len(self._copies) == self._most:
                self._left.clear()
        self._question.container.continue_later(self, self._question.identity.name)

    def _write(self) -> None:
        batch, copies, self._copies, self._octets = Batch(), self._copies, [], 0
        for made in copies:
            self._target.take_place(made)  # only now: none that comes meanwhile is behind it and in the queue before it
            write_post(batch, made)
            made.payload = None
        details = {**self._details, "messages": self._done + len(copies)}
        actor = self._question.actor
        self._entry = self._audit.write(batch, actor, "copy", details, self._entry)
        self._resource.submit(batch, lambda error: self._written(copies, error))

    def _written(self, copies: list[Entry], error: NotStored | None) -> None:
        for made in copies:
            self._target.expect_no_more(made)
            if error is None:
                self._target.append(made)
        if error is None:
            self._done += len(copies)
        else:
            self._left.clear()
            self._why[not_stored(error, Code.XAER_RMERR).description] = len(copies)
            self._audit.failed(self._entry, str(error), messages=self._done)
        self._question.container.continue_later(self, self._question.identity.name)


def _fetch(request: ManagementRequest, entry: Entry, done: Callable[[bytes | None], None]) -> None:
    """Reads a message from memory or the store."""
    resource = request.container.resource
    payload = resource.payloads.get(entry) if fits_one_piece(entry) else None
    if payload is not None:
        done(payload)
    else:
        resource.fetch_message(entry, done)
