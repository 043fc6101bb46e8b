"""Telemetry: the instruments in OpenTelemetry; Recorder: what one manager records with them.

Spans: one per transaction, from begin to outcome, a child of what is current in the context of begin, and current
itself while the transaction is; under it one per branch, from its first verb to the transaction's outcome; under that
one for each verb that completes the branch, while other verbs are its events. The transaction of a consumer has a span
for its messages above it, which is a child of the span in which the one message was sent, or has links to those in
which the messages of a batch were. A message has the context of its sending, `traceparent`, in its application
properties; so it stays with it when it is put off or dead-lettered. `tm.telemetry.message_spans` has the spans of sends
and receives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from tm.outcome import Verdict, named
from tm.recovery import Action
from tm.telemetry import metrics as table
from tm.telemetry.gauges import POINTS
from tm.telemetry.message_spans import (
    BATCH,
    OPERATION_TYPE,
    MessageSpans,
    TracedSession,
    carried,
    carried_spans,
    is_for_messages,
)
from tm.telemetry.proxies import RAISED, MeasuredPorts, observed
from tm.transaction import live_of
from tm.two_phase.return_codes import MEANING, AnswerMeaning, Verb
from xa import Code
from xa.telemetry.metric import QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from tm.outcome import Outcome
    from tm.recording import Received
    from tm.recovery import Report
    from tm.telemetry.gauges import Point
    from tm.telemetry.pages import ObservedManager
    from tm.two_phase.ports import Ports
    from xa import ResourceManager, Xid
    from xa.telemetry.metric import Metric

_SCOPE: Final = "xabridge"
TRANSACTION_SPAN: Final = "xabridge.transaction"
BRANCH_SPAN: Final = "xabridge.branch"
GTRID: Final = "xabridge.gtrid"
XID: Final = "xabridge.xid"

_AS_ASKED: Final = frozenset({Code.XA_OK, Code.XA_RDONLY, Code.XA_NOMIGRATE})
_COMMITS: Final = {
    "commit": Verb.COMMIT,
    "commit_one_phase": Verb.COMMIT_ONE_PHASE,
    "decide": Verb.DECIDE,
}
_VERBS: Final = {"prepare": Verb.PREPARE, "rollback": Verb.ROLLBACK, **_COMMITS}
_BRANCH_OUTCOMES: Final[dict[tuple[Verb, AnswerMeaning], str]] = {
    (Verb.PREPARE, AnswerMeaning.DONE): "prepared",
    (Verb.PREPARE, AnswerMeaning.READ_ONLY): "read_only",
    (Verb.PREPARE, AnswerMeaning.ROLLED_BACK): "rolled_back",
    (Verb.ROLLBACK, AnswerMeaning.DONE): "rolled_back",
    **{(verb, AnswerMeaning.DONE): "committed" for verb in _COMMITS.values()},
    **{(verb, AnswerMeaning.ROLLED_BACK): "rolled_back" for verb in _COMMITS.values()},
}
"""The state of a branch after an answer; other answers leave it open."""


PROCESS: Final = "process"
"""The operation of a consumer, by the semantic conventions for messaging."""


class Telemetry:
    """The instruments, and the recorders of the managers that use them."""

    def __init__(self, meter_provider: MeterProvider | None, tracer_provider: TracerProvider | None) -> None:
        self.tracer = trace.get_tracer(_SCOPE, version("xabridge"), tracer_provider)
        self._recorders: WeakSet[Recorder] = WeakSet()
        self.instruments: dict[Metric, Callable[..., None]] = {}
        self.show(meter_provider)

    def show(self, meter_provider: MeterProvider | None) -> None:
        """Gives the metrics to this provider, too, from now on."""
        meter = metrics.get_meter(_SCOPE, version("xabridge"), meter_provider)
        for metric in table.METRICS:
            if metric.kind == "gauge":
                metric.observed(meter, partial(self._observe, metric))
            else:
                record = metric.recorded(meter)
                before = self.instruments.get(metric)
                self.instruments[metric] = record if before is None else _both(before, record)

    def recorder(self, node: str) -> Recorder:
        """The recorder of a manager."""
        recorder = Recorder(self, node)
        self._recorders.add(recorder)
        return recorder

    def dismiss(self, recorder: Recorder) -> None:
        """Drops a recorder, which has nothing to report any more."""
        self._recorders.discard(recorder)

    def _observe(self, metric: Metric, _: CallbackOptions) -> Iterable[metrics.Observation]:
        return [
            metrics.Observation(value, {table.NODE: recorder.node, **attributes})
            for recorder in tuple(self._recorders)
            for value, attributes in recorder.points(metric)
        ]


def _both(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    """Records with two instruments."""

    def record(value: float, attributes: Mapping[str, Any]) -> None:
        first(value, attributes)
        second(value, attributes)

    return record


class CurrentSpan(NamedTuple):
    """A span that is the current one, and what was before it."""

    span: Span
    outer: Context


@dataclass(slots=True)
class _Branch:
    span: Span
    outcome: str = "unknown"


@dataclass(slots=True)
class _Trace:
    """One transaction that is under way."""

    began: float
    span: Span
    process: Span | None
    branches: dict[str, _Branch] = field(default_factory=dict)


class Recorder:
    """Records for one manager, from any thread."""

    def __init__(self, telemetry: Telemetry, node: str) -> None:
        self.node = node
        self._telemetry = telemetry
        self._tracer = telemetry.tracer
        self._record = telemetry.instruments
        self._node = {table.NODE: node}
        self._asked: dict[tuple[str, str], dict[str, str]] = {}
        self._spans: dict[str, MessageSpans] = {}
        """By the kind of the broker."""

        self._traces: dict[bytes, _Trace] = {}
        self._left: dict[bytes, tuple[float, frozenset[str]]] = {}
        self._undone: frozenset[bytes] = frozenset()
        self._doubtful: dict[bytes, float] = {}
        """Since when a transaction is known to be in doubt, as far as somebody has asked."""
        self._observed: ObservedManager | None = None
        for verdict in Verdict:  # a counter that begins with its first event shows no increase
            self._record[table.COMPLETED](0, {**self._node, table.OUTCOME: verdict.name.lower()})

    # --- set up ---------------------------------------------------------------------------------------------

    def resource(self, name: str, rm: ResourceManager, system: str) -> ResourceManager:
        """`rm` with its verbs measured."""
        return observed(name, rm, system, self)

    def session(self, session: Any, system: str) -> Any:
        """`session` of a resource of this kind, with its messages traced, if it is one for messages."""
        if not is_for_messages(session):
            return session
        spans = self._spans.get(system)
        if spans is None:
            spans = self._spans[system] = MessageSpans(self._tracer, system, self._node, self._is_waiting)
        return TracedSession(session, spans)

    def _is_waiting(self) -> bool:
        transaction = self._observed.manager.current_or_none() if self._observed is not None else None
        return transaction is not None and live_of(transaction).waits

    def ports(self, ports: Ports) -> Ports:
        """`ports` with their phases and forces measured."""
        return MeasuredPorts(ports, self)

    def watches(self, observed: ObservedManager) -> None:
        """The gauges are those of this manager from now on."""
        self._observed = observed

    def points(self, metric: Metric) -> Iterable[Point]:
        """The points of a gauge."""
        if metric is table.IN_DOUBT:
            return [(self.in_doubt(), {})]
        if metric is table.IN_DOUBT_AGE:
            return [(self.in_doubt_s(), {})]
        return [] if self._observed is None else list(POINTS[metric](self._observed))

    def close(self) -> None:
        """Observes nothing of this manager any more."""
        self._telemetry.dismiss(self)

    # --- transactions ---------------------------------------------------------------------------------------

    def began(self, gtrid: bytes, received: Received | None = None) -> None:
        """A transaction has begun, or has work now: messages that a consumer has received in it."""
        self._record[table.BEGUN](1, self._node)
        process = self._process_span(received) if received is not None else None
        above = trace.set_span_in_context(process) if process is not None else None
        span = self._tracer.start_span(TRANSACTION_SPAN, above, attributes={GTRID: named(gtrid), **self._node})
        self._traces[gtrid] = _Trace(perf_counter(), span, process)

    def enter(self, gtrid: bytes) -> CurrentSpan | None:
        """The span of a transaction becomes the current one of the calling context."""
        found = self._traces.get(gtrid)
        if found is None:
            return None
        entered = CurrentSpan(found.span, context.get_current())
        context.attach(trace.set_span_in_context(found.span))
        return entered

    def leave(self, entered: CurrentSpan) -> None:
        """What was current before is so again, unless the application has made another span current since."""
        if trace.get_current_span() is entered.span:
            context.attach(entered.outer)  # with a token this would work in the context of `enter` only

    def _process_span(self, received: Received) -> Span:
        system, queue, messages = received
        sent = carried_spans(messages)

        attributes: dict[str, Any] = {
            **self._node,
            table.SYSTEM: system,
            table.OPERATION: PROCESS,
            OPERATION_TYPE: PROCESS,
            QUEUE: queue,
            BATCH: len(messages),
        }
        return self._tracer.start_span(
            f"{PROCESS} {queue}",
            carried(messages[0]) if len(messages) == 1 and sent else None,
            SpanKind.CONSUMER,
            attributes,
            list(map(Link, sent)) if len(messages) > 1 else (),
        )

    def completed(self, outcome: Outcome) -> None:
        """A transaction has come to its outcome."""
        verdict = outcome.verdict
        attributes = {**self._node, table.OUTCOME: verdict.name.lower()}
        self._record[table.COMPLETED](1, attributes)
        if outcome.pending:
            resources = frozenset(branch.resource for branch in outcome.pending)
            self._left[outcome.gtrid] = perf_counter(), resources

        found = self._traces.pop(outcome.gtrid, None)
        if found is None:
            return
        self._record[table.DURATION](perf_counter() - found.began, attributes)
        self._end_branches(found, outcome)
        found.span.set_attribute(table.OUTCOME, verdict.name.lower())
        if verdict not in (Verdict.COMMITTED, Verdict.ROLLED_BACK):
            found.span.set_status(Status(StatusCode.ERROR, "; ".join(map(str, outcome.reasons)) or verdict.value))
        found.span.end()
        if found.process is not None:
            found.process.set_attribute(table.OUTCOME, verdict.name.lower())
            if verdict is not Verdict.COMMITTED:
                why = "; ".join(map(str, outcome.reasons)) or verdict.value
                found.process.set_status(Status(StatusCode.ERROR, why))
            found.process.end()

    def _end_branches(self, found: _Trace, outcome: Outcome) -> None:
        troubled = {branch.resource: "in_doubt" for branch in outcome.pending}
        troubled |= {heuristic.branch.resource: heuristic.code.name for heuristic in outcome.heuristics}
        for resource, branch in found.branches.items():
            trouble = troubled.get(resource)
            branch.span.set_attribute(table.OUTCOME, trouble or branch.outcome)
            if trouble is not None:
                branch.span.set_status(Status(StatusCode.ERROR, trouble))
            branch.span.end()

    # --- what they are made of --------------------------------------------------------------------------------

    def verb(self, resource: str, verb: str, began: float, code: Code | None, xid: Xid | None) -> None:
        """A resource manager was asked `verb` at `began` and has answered `code` (None: it raised what it must not)."""
        took_s = perf_counter() - began
        attributes = self._asked.get((resource, verb))
        if attributes is None:
            attributes = self._asked[resource, verb] = {**self._node, table.RESOURCE: resource, table.VERB: verb}
        self._record[table.VERB_DURATION](took_s, attributes)
        said = RAISED if code is None else code.name
        if code not in _AS_ASKED:
            self._record[table.VERB_FAILURES](1, {**attributes, table.CODE: said})
        if xid is None:
            return

        found = self._traces.get(xid.gtrid)
        if found is None or not found.span.is_recording():
            return  # recovery asks, or the transaction is over, or its spans are not recorded
        branch = found.branches.get(resource)
        if branch is None:
            branch = found.branches[resource] = _Branch(self._branch_span(found.span, resource, xid, took_s))
        asked = _VERBS.get(verb)
        if asked is None:
            branch.span.add_event(verb, {table.CODE: said, "xabridge.duration": took_s})
        else:
            self._verb_span(branch.span, attributes, took_s, code)
        if asked is not None and code is not None:
            branch.outcome = _BRANCH_OUTCOMES.get((asked, MEANING[asked][code]), branch.outcome)

    def _branch_span(self, parent: Span, resource: str, xid: Xid, took_s: float) -> Span:
        attributes: dict[str, Any] = {XID: str(xid), table.RESOURCE: resource, **self._node}
        return self._tracer.start_span(
            BRANCH_SPAN,
            trace.set_span_in_context(parent),
            attributes=attributes,
            start_time=time_ns() - int(took_s * 1e9),
        )

    def _verb_span(self, parent: Span, attributes: Mapping[str, str], took_s: float, code: Code | None) -> None:
        """The span of a verb that has come to its end."""
        said = RAISED if code is None else code.name
        span = self._tracer.start_span(
            f"{attributes[table.VERB]} {attributes[table.RESOURCE]}",
            trace.set_span_in_context(parent),
            SpanKind.CLIENT,
            {**attributes, table.CODE: said},
            start_time=time_ns() - int(took_s * 1e9),
        )
        if code not in _AS_ASKED:
            span.set_status(Status(StatusCode.ERROR, said))
        span.end()

    def phase(self, phase: str, began: float) -> None:
        """A phase that began at `began` is over for every branch."""
        self._record[table.PHASE_DURATION](perf_counter() - began, {**self._node, table.PHASE: phase})

    def forced(self, record: str, began: float, *, gtrid: bytes, failed: bool) -> None:  # noqa: ARG002 — no attribute
        """A record was forced, or was to be."""
        attributes = {**self._node, table.RECORD: record, table.FAILED: failed}
        self._record[table.FORCE_DURATION](perf_counter() - began, attributes)

    def consumes(self, system: str, queue: str, outcomes: Iterable[str]) -> None:
        """Notes a consumer of `queue`: each of its outcomes is counted from 0 on, for the same reason."""
        for outcome in outcomes:
            self._record[table.CONSUMED](0, self._of_consumer(system, queue, outcome))

    def consumed(self, system: str, queue: str, outcome: str, messages: int, took_s: float) -> None:
        """A consumer of `queue`, at a broker of this kind, has come to an end with so many messages."""
        attributes = self._of_consumer(system, queue, outcome)
        self._record[table.CONSUMED](messages, attributes)
        self._record[table.CONSUMER_DURATION](took_s, attributes)

    def _of_consumer(self, system: str, queue: str, outcome: str) -> dict[str, str]:
        return {
            **self._node,
            table.SYSTEM: system,
            table.OPERATION: PROCESS,
            QUEUE: queue,
            table.OUTCOME: outcome,
        }

    # --- recovery -------------------------------------------------------------------------------------------

    def recovered(self, report: Report, began: float) -> None:
        """A recovery pass that began at `began` is over."""
        self._record[table.PASSES](1, {**self._node, table.CLEAN: report.clean})
        self._record[table.PASS_DURATION](perf_counter() - began, self._node)
        for finding in report.findings:
            attributes = {
                **self._node,
                table.RESOURCE: finding.branch.resource,
                table.ACTION: finding.action.name.lower(),
            }
            self._record[table.FINDINGS](1, attributes)
        pending = (f.branch.xid.gtrid for f in report.findings if f.action is Action.PENDING)
        self._undone = frozenset((*report.undone, *pending))
        for gtrid, (left_at, resources) in tuple(self._left.items()):
            if left_at < began and resources.isdisjoint(report.unreachable):
                self._left.pop(gtrid, None)  # the pass has seen what became of it

    def in_doubt(self) -> int:
        """How many transactions recovery has to finish: those that the latest pass could not, and those left since."""
        return len(self._in_doubt())

    def in_doubt_s(self) -> float:
        """The time for which that has been known of the first of them."""
        now, doubtful = perf_counter(), self._in_doubt()
        self._doubtful = {gtrid: self._doubtful.get(gtrid, now) for gtrid in doubtful}
        return now - min(self._doubtful.values(), default=now)

    def _in_doubt(self) -> frozenset[bytes]:
        return self._undone.union(tuple(self._left))
