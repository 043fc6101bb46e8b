"""Telemetry: the instruments in OpenTelemetry; Recorder: what one manager records with them.

Spans: one per transaction, from begin to outcome, a child of what is current in the context of begin; under it
one per branch, from its first verb to the transaction's outcome, with every verb after as an event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from opentelemetry import metrics, trace
from opentelemetry.trace import Status, StatusCode

from tm.outcome import Verdict, named
from tm.recovery import Action
from tm.telemetry import metrics as table
from tm.telemetry.proxies import RAISED, MeasuredPorts, observed
from tm.two_phase.return_codes import MEANING, Meaning, Verb
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from tm.outcome import Outcome
    from tm.recovery import Report
    from tm.two_phase.ports import Ports
    from xa import ResourceManager, Xid

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
_BRANCH_OUTCOMES: Final[dict[tuple[Verb, Meaning], str]] = {
    (Verb.PREPARE, Meaning.DONE): "prepared",
    (Verb.PREPARE, Meaning.READ_ONLY): "read_only",
    (Verb.PREPARE, Meaning.ROLLED_BACK): "rolled_back",
    (Verb.ROLLBACK, Meaning.DONE): "rolled_back",
    **{(verb, Meaning.DONE): "committed" for verb in _COMMITS.values()},
    **{(verb, Meaning.ROLLED_BACK): "rolled_back" for verb in _COMMITS.values()},
}
"""The state of a branch after an answer; other answers leave it open."""


class Telemetry:
    """The instruments, and the recorders of the managers that use them."""

    def __init__(self, meter_provider: MeterProvider | None, tracer_provider: TracerProvider | None) -> None:
        ours = version("xabridge")
        meter = metrics.get_meter(_SCOPE, ours, meter_provider)
        self.tracer = trace.get_tracer(_SCOPE, ours, tracer_provider)
        self._recorders: WeakSet[Recorder] = WeakSet()

        def counter(metric: table.Metric) -> Callable[..., None]:
            return meter.create_counter(metric.name, metric.unit, metric.description).add

        def histogram(metric: table.Metric) -> Callable[..., None]:
            return meter.create_histogram(
                metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=table.BUCKETS_S
            ).record

        make: dict[table.Kind, Callable[[table.Metric], Callable[..., None]]] = {
            "counter": counter,
            "histogram": histogram,
        }
        self.instruments = {metric: make[metric.kind](metric) for metric in table.METRICS if metric.kind in make}
        gauge = table.IN_DOUBT
        meter.create_observable_gauge(gauge.name, [self._observe_in_doubt], gauge.unit, gauge.description)

    def recorder(self, node: str) -> Recorder:
        """For a manager: what it records with."""
        recorder = Recorder(self, node)
        self._recorders.add(recorder)
        return recorder

    def dismiss(self, recorder: Recorder) -> None:
        """For a recorder: it has nothing to tell any more."""
        self._recorders.discard(recorder)

    def _observe_in_doubt(self, _: CallbackOptions) -> Iterable[metrics.Observation]:
        return [
            metrics.Observation(recorder.in_doubt(), {table.NODE: recorder.node}) for recorder in tuple(self._recorders)
        ]


@dataclass(slots=True)
class _Branch:
    span: Span
    outcome: str = "unknown"


@dataclass(slots=True)
class _Trace:
    """One transaction that is under way."""

    began: float
    span: Span
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
        self._traces: dict[bytes, _Trace] = {}
        self._left: dict[bytes, tuple[float, frozenset[str]]] = {}
        self._undone: frozenset[bytes] = frozenset()

    # --- set up ---------------------------------------------------------------------------------------------

    def resource(self, name: str, rm: ResourceManager) -> ResourceManager:
        """`rm` with its verbs measured."""
        return observed(name, rm, self)

    def ports(self, ports: Ports) -> Ports:
        """`ports` with their phases and forces measured."""
        return MeasuredPorts(ports, self)

    def close(self) -> None:
        """Nothing is observed of this manager any more."""
        self._telemetry.dismiss(self)

    # --- transactions ---------------------------------------------------------------------------------------

    def began(self, gtrid: bytes) -> None:
        """A transaction has begun."""
        self._record[table.BEGUN](1, self._node)
        span = self._tracer.start_span(TRANSACTION_SPAN, attributes={GTRID: named(gtrid), **self._node})
        self._traces[gtrid] = _Trace(perf_counter(), span)

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
            return  # recovery asks, or the transaction is over, or nobody looks at its spans
        branch = found.branches.get(resource)
        if branch is None:
            branch = found.branches[resource] = _Branch(self._branch_span(found.span, resource, xid, took_s))
        branch.span.add_event(verb, {table.CODE: said, "xabridge.duration": took_s})
        asked = _VERBS.get(verb)
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

    def phase(self, phase: str, began: float) -> None:
        """A phase that began at `began` is over for every branch."""
        self._record[table.PHASE_DURATION](perf_counter() - began, {**self._node, table.PHASE: phase})

    def forced(self, record: str, began: float, *, failed: bool) -> None:
        """A record was forced, or was to be."""
        attributes = {**self._node, table.RECORD: record, table.FAILED: failed}
        self._record[table.FORCE_DURATION](perf_counter() - began, attributes)

    def consumed(self, queue: str, outcome: str, messages: int, took_s: float) -> None:
        """A consumer of `queue` has come to an end with so many messages."""
        attributes = {**self._node, table.QUEUE: queue, table.OUTCOME: outcome}
        self._record[table.CONSUMED](messages, attributes)
        self._record[table.CONSUMER_DURATION](took_s, attributes)

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
        return len(self._undone.union(tuple(self._left)))
