"""Performs the effects of the driver's core on the ledger, the log and the resource managers."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rm_amqp import AmqpResource
from tm.effects import Call, End, Force, Note, Pause
from tm.log import DecisionRefused, LogError
from tm.log.sql.gtrids import TakenOver
from tm.performer import Performer
from tm.verdicts import Verb
from xa import XaError, log_prefix
from xabridge.pipeline.core import effects
from xabridge.pipeline.core.errors import BatchRefused
from xabridge.pipeline.core.naming import Own
from xabridge.pipeline.core.resources import asked, broker, prepared
from xabridge.pipeline.core.upserts import upserted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from tm.log import Branch
    from tm.resources import Resource
    from xabridge.pipeline.core.effects import Effect
    from xabridge.pipeline.core.finishing import Steps
    from xabridge.pipeline.core.ledger import Ledger

T = TypeVar("T")

logger: Final = logging.getLogger("xabridge.pipeline")


def run(steps: Generator[Any, Any, T], perform: Callable[[Any], Any]) -> T:
    """What comes of the steps. What the ledger and the log raise is raised where the steps asked."""
    try:
        effect = next(steps)
        while True:
            try:
                answer = perform(effect)
            except LogError as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


class Shell:
    """The shell of one process of a driver. Not for several threads at a time."""

    def __init__(
        self, ledger: Ledger, resources: Mapping[str, Resource], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.ledger = ledger
        self.own = Own(ledger.pipeline, ledger.log.log_id, ledger.log.epoch)
        self.names = tuple(resources)
        self.resources = resources
        self.prefix = log_prefix(ledger.pipeline, ledger.log.log_id)
        self._performer = Performer(resources, ledger.log, sleep)

    def run(self, steps: Steps[T]) -> T:
        """What comes of the steps."""
        return run(steps, self.perform)

    def perform(self, effect: Effect) -> Any:
        """The answer to `effect`."""
        if isinstance(effect, (Call, Force, Note, End, Pause)):
            return self._performer.perform(effect)
        return _PERFORM[type(effect)](self, effect)


def _begin(shell: Shell, effect: effects.Begin) -> DecisionRefused | None:
    try:
        shell.ledger.log.begin(effect.gtrid)
    except TakenOver:
        raise
    except DecisionRefused as error:
        return error
    return None


def _scan(shell: Shell, effect: effects.Scan) -> Any:
    try:
        return prepared(shell.resources[effect.resource], shell.prefix)
    except XaError as error:
        logger.warning("%s could not be asked for prepared branches: %s", effect.resource, error)
        return error


def _fence(shell: Shell, effect: effects.Fence) -> XaError | None:
    resource = shell.resources[effect.resource]
    rm = resource.rm
    if not isinstance(rm, AmqpResource):
        return None
    try:
        asked(resource, "fence", lambda: rm.fence(effect.gtrid, resource.rmid))
    except XaError as error:
        logger.warning("%s: no fence could be put up: %s", effect.resource, error)
        return error
    return None


def _upsert(shell: Shell, effect: effects.Upsert) -> tuple[Branch, ...] | BatchRefused:
    """A branch for each database. Where one can't be prepared, those that are prepared go."""
    done: list[Branch] = []
    for name in sorted({one.target.resource for one in effect.staged}):
        some = [one for one in effect.staged if one.target.resource == name]
        try:
            branch = upserted(shell.resources[name], effect.gtrid, some, shell.prefix)
        except BatchRefused as refused:
            shell.perform(Call(Verb.ROLLBACK, tuple(done)))
            return refused
        done += [branch] if branch is not None else []
    return tuple(done)


def _count(shell: Shell, effect: effects.Count) -> Any:
    resource = shell.resources[effect.resource]
    try:
        return asked(resource, "recover", lambda: broker(resource).holds(effect.gtrid, resource.rmid))
    except XaError as error:
        return error


def _has_messages(shell: Shell, effect: effects.HasMessages) -> bool | XaError:
    resource = shell.resources[effect.resource]
    rm = broker(resource)
    try:
        return any(
            asked(resource, "browse", lambda queue=queue: rm.has_messages(queue, resource.rmid))  # type: ignore[misc]
            for queue in effect.queues
        )
    except XaError as error:
        return error


_PERFORM: Final[dict[type, Callable[[Shell, Any], Any]]] = {
    effects.Standing: lambda shell, _: shell.ledger.standing(),
    effects.FindEpoch: lambda shell, effect: shell.ledger.epoch(effect.epoch),
    effects.FindPlanned: lambda shell, effect: shell.ledger.planned(effect.gtrid),
    effects.FindLater: lambda shell, effect: shell.ledger.later(effect.query, effect.place, effect.epoch),
    effects.FindWaiting: lambda shell, effect: shell.ledger.waiting(effect.query),
    effects.FindKnown: lambda shell, effect: shell.ledger.known(effect.query),
    effects.FindUnlogged: lambda shell, effect: shell.ledger.unlogged(effect.upto),
    effects.FindBatch: lambda shell, effect: shell.ledger.batch(effect.query),
    effects.Allot: lambda shell, _: shell.ledger.allot(),
    effects.Plan: lambda shell, effect: shell.ledger.plan(
        effect.epoch, effect.previous, effect.gtrid, effect.tries, effect.source, effect.query, effect.place
    ),
    effects.PlanAgain: lambda shell, effect: shell.ledger.plan_again(effect.gtrid),
    effects.Replayed: lambda shell, _: shell.ledger.replayed(),
    effects.Sink: lambda shell, effect: shell.ledger.sink(effect.gtrid),
    effects.Bind: lambda shell, effect: shell.ledger.bind(effect.query, effect.batch, effect.gtrid, effect.offsets),
    effects.BindQuery: lambda shell, effect: shell.ledger.bind_query(effect.query, effect.run, effect.sources),
    effects.NameEpochs: lambda shell, effect: shell.ledger.name_epochs(effect.query, effect.epochs),
    effects.Log: lambda shell, effect: shell.ledger.logged(effect.epochs),
    effects.Finished: lambda shell, effect: shell.ledger.finished(effect.gtrid, effect.words),
    effects.Begin: _begin,
    effects.Abort: lambda shell, effect: shell.ledger.log.abort(effect.gtrid),
    effects.Look: lambda shell, effect: shell.ledger.log.entry(effect.gtrid),
    effects.Undone: lambda shell, _: shell.ledger.log.decisions(),
    effects.Scan: _scan,
    effects.Fence: _fence,
    effects.FindIsolation: lambda shell, _: shell.ledger.isolation(),
    effects.Isolate: lambda shell, effect: shell.ledger.isolate(effect.isolation),
    effects.Failed: lambda shell, effect: shell.ledger.failed(effect.gtrid, effect.messages, effect.place),
    effects.Count: _count,
    effects.Upsert: _upsert,
    effects.HasMessages: _has_messages,
}
