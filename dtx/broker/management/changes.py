"""What management changes beside messages: queues are created, deleted, paused and resumed, a connection is closed, a
branch is dropped. Each change and its entry in the audit log are one batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.conditions import Condition
from dtx.amqp.values import Timestamp, Ulong
from dtx.broker.access.permissions import fits
from dtx.broker.management.messages import queue_of
from dtx.broker.settings import WhenFull
from dtx.broker.transactional_resource import CONFIGURABLE, CONFIGURED, MAX_NAME, PAUSED, changed_settings, not_stored
from dtx.broker.transactions.branches import EXPIRING
from dtx.protocol.addresses import RESERVED
from dtx.protocol.conditions import Refusal, refused
from dtx.store.contract import Batch
from xa import Code, Xid
from xa.state_tables import BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.values import Map, Value
    from dtx.broker.access.audit import AuditEntry
    from dtx.broker.management.request import Answer, ManagementRequest
    from dtx.broker.queues.queue import Queue
    from dtx.store.contract import NotStored


UNTOLD: Final = 1 << 63
"""In place of a number that a request does not tell."""


def change(
    request: ManagementRequest,
    answer: Answer,
    batch: Batch,
    details: dict[str, Any],
    done: Callable[[], None],
    undone: Callable[[], None] = lambda: None,
) -> None:
    """Makes a change durable with its entry in the audit log, carries it out then, and answers."""
    audit = request.container.audit
    number = audit.write(batch, request.actor, request.text("operation"), details)

    def written(error: NotStored | None) -> None:
        if error is None:
            done()
            answer({})
        else:
            audit.failed(number, str(error))
            undone()
            answer(not_stored(error, Code.XAER_RMERR))

    request.container.resource.submit(batch, written)


# -- queues
def create_queue(request: ManagementRequest, answer: Answer) -> None:
    """A new queue."""
    resource, name = request.container.resource, request.text("queue")
    if name in resource.queues:
        raise refused(Code.XAER_DUPID, f"there is a queue {name!r} already")
    if not name or len(name) > MAX_NAME or not name.isprintable() or name.startswith(RESERVED):
        message = f"a queue's name has 1 to {MAX_NAME} printable characters, and does not begin with {RESERVED}"
        raise refused(Code.XAER_INVAL, message)
    resource.check_is_no_topic(name)
    resource.create(name)
    change(request, answer, Batch(), {"queue": name}, lambda: None)


def configure_queue(request: ManagementRequest, answer: Answer) -> None:
    """Some settings of a queue change, in place of what the configuration says, also after a restart."""
    resource, queue = request.container.resource, queue_of(request)
    details: dict[str, Any] = {}
    for name in CONFIGURABLE:
        argument = name.replace("_", "-")
        if name == "when_full":
            value: int | str = request.text(argument, "")
        else:
            value = request.number(argument, UNTOLD)
        if value not in {"", UNTOLD}:
            details[name] = value
    if not details:
        raise refused(Code.XAER_INVAL, f"nothing is to change: name one of {', '.join(CONFIGURABLE)}")
    before = queue.settings
    settings = changed_settings(before, details)
    if settings.when_full is WhenFull.DEAD_LETTER and not settings.dead_letter:
        raise refused(Code.XAER_INVAL, f"when_full: {queue.name} has no dead letters (dead_letter is empty)")
    batch = Batch()
    queue.write(batch)
    number = queue.configured or resource.number()
    kept = {name: getattr(settings, name) for name in CONFIGURABLE}
    batch.record(number, CONFIGURED, json.dumps({"queue": queue.number, **kept}))

    def done() -> None:
        queue.settings, queue.configured = settings, number

    change(request, answer, batch, {"queue": queue.name, **details}, done)


def delete_queue(request: ManagementRequest, answer: Answer) -> None:
    """A queue goes, with its messages. What transactions and prepared branches hold of it, or post to it, keeps it."""
    queue, force = queue_of(request), request.flag("force")
    container = request.container
    if queue.name in container.settings.queues and queue.subscription is None:
        raise _kept(f"{queue.name} is in the configuration, and would come back: remove it there first, or purge it")
    if queue.depth and not force:
        raise _kept(f"{queue.name} has messages ({queue.depth}): purge it first, or say `force`")
    if queue.attached and not force:
        raise _kept(f"{queue.name} has consumers ({queue.attached}): close them first, or say `force`")
    if queue.subscription is not None:
        _delete_subscription(request, answer, queue)
        return
    queue.closing = True  # it takes and gives nothing more
    _detach(request, queue)
    if queue.counters.held or queue.counters.pending:
        queue.closing = False
        queue.look()
        message = f"transactions or prepared branches hold messages of {queue.name} ({queue.counters.held})"
        raise _kept(f"{message}, or post to it ({queue.counters.pending}); nothing was deleted")
    was_unstored = container.resource.forget_unstored(queue)
    batch = Batch()
    queue.write_deletion(batch)

    def done() -> None:
        container.resource.drop_lasting(queue)
        _detach(request, queue)

    def undone() -> None:
        queue.closing = False
        queue.look()
        if was_unstored:
            container.resource.remember_unstored(queue)

    change(request, answer, batch, {"queue": queue.name, "messages": queue.depth}, done, undone)


def _delete_subscription(request: ManagementRequest, answer: Answer, queue: Queue) -> None:
    """A subscription goes. From now on no message is for it, and its deletion is tried until the store takes it."""
    container = request.container
    if container.resource.topics.holds(queue):
        raise _kept(f"prepared branches have taken messages from {queue.name}; nothing was deleted")
    batch, details = Batch(), {"queue": queue.name, "messages": queue.depth}
    container.audit.write(batch, request.actor, request.text("operation"), details)
    _detach(request, queue)
    container.resource.topics.unsubscribe(queue, lambda _: answer({}), batch)


def _kept(message: str) -> Exception:
    return refused(Code.XAER_PROTO, message)


def _detach(request: ManagementRequest, queue: Queue) -> None:
    """Closes the links of a queue that goes."""
    gone = Refusal(Condition.RESOURCE_DELETED, f"the queue {queue.name} is gone", Code.XAER_NOTA)
    for connection in tuple(request.container.connections.values()):
        for link in tuple(connection.links.values()):
            if link.address == queue.name:
                link.detach(gone)


def pause_queue(request: ManagementRequest, answer: Answer) -> None:
    """No consumer gets messages of the queue any more, also after a restart; it goes on taking messages."""
    queue, who = queue_of(request), str(request.identity)
    batch = Batch()
    queue.write(batch)
    batch.record(queue.number, PAUSED, who)
    before, queue.paused = queue.paused, who

    def undone() -> None:
        if not before:
            queue.unpause()

    change(request, answer, batch, {"queue": queue.name}, lambda: None, undone)


def resume_queue(request: ManagementRequest, answer: Answer) -> None:
    """Consumers get messages again."""
    queue = queue_of(request)
    batch = Batch()
    batch.drop_record(queue.number)
    change(request, answer, batch, {"queue": queue.name}, queue.unpause)


# -- connections and branches
def close_connection(request: ManagementRequest, answer: Answer) -> None:
    """Closes a connection. What it held is free, as if the network had failed; prepared branches stay."""
    wanted = request.text("connection")
    found = [one for number, one in request.container.connections.items() if f"{number:x}" == wanted]
    if not found:
        raise refused(Code.XAER_NOTA, f"there is no connection {wanted}")
    (connection,) = found
    details = {"connection": wanted, "user": str(connection.identity), "peer": connection.peer}

    def done() -> None:
        connection.close(Refusal(Condition.CONNECTION_FORCED, "an operator closed the connection", Code.XAER_RMFAIL))

    change(request, answer, Batch(), details, done)


def drop_branch(request: ManagementRequest, answer: Answer) -> None:
    """A branch that is not prepared becomes rollback-only, and what it holds is free."""
    try:
        xid = Xid.parse(request.text("xid"))
    except ValueError as error:
        raise refused(Code.XAER_INVAL, f"xid: {error}") from None
    branch = request.container.registry.find(xid)

    def check() -> None:
        if branch.state not in EXPIRING or branch.waiting is not None:
            message = f"the branch is {branch.state.value}: only one that is not prepared can be dropped"
            raise refused(Code.XAER_PROTO, f"{message}. `xabridge recover` completes those in doubt", xid)

    check()

    def done() -> None:
        if branch.state in EXPIRING and branch.waiting is None:  # it may have been prepared meanwhile
            branch.undo(BranchVerb.EXPIRE, f"{request.identity} dropped it", Code.XA_RBOTHER)

    change(request, answer, Batch(), {"xid": str(xid), "owner": branch.owner}, done)


# -- the audit log
def audit(request: ManagementRequest) -> list[Value]:
    """A page of the audit log, the newest first; with `who` and `what`, patterns in which * stands for any text,
    of these only."""
    after, who, what = request.after, request.text("who", "*"), request.text("what", "*")
    when, _, number = after.partition("-")
    given = number and set(when + number) <= set("0123456789abcdef")
    newest = request.container.audit.newest((int(when, 16), int(number, 16)) if given and when else None)
    return request.page((row for row in newest if fits(who, row[1].who) and fits(what, row[1].what)), _entry)


def _entry(item: tuple[int, AuditEntry]) -> Map:
    number, entry = item
    return {
        "id": f"{entry.when_ms:x}-{number:x}",
        "when": Timestamp(entry.when_ms),
        "first": Timestamp(entry.first_ms) if entry.count else None,
        "count": Ulong(max(entry.count, 1)),
        "who": entry.who,
        "from": entry.address or None,
        "browser": entry.browser or None,
        "what": entry.what,
        "outcome": entry.outcome.value,
        "why": entry.why or None,
        "about": {name: _value(value) for name, value in entry.about.items()},
    }


def _value(value: Any) -> Value:
    return Ulong(value) if type(value) is int else str(value)
