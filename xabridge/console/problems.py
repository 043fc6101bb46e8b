"""Problems: the conditions (`xa.telemetry.conditions`) that hold, as the overview shows them: what it is, where, which
page has more, and what to do first.

Each of the three questions has one of three answers: fine; trouble, if one of its conditions holds; and not known yet,
if someone has not answered, or may not be asked, and nothing else is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xa.telemetry.conditions import (
    AWAY,
    BRANCH_IN_DOUBT,
    BY_NAME,
    CLOCK_OFF,
    CONDITIONS,
    CONSUMER_FAILING,
    CONSUMER_TROUBLED,
    DEAD_LETTERS,
    GROWING_BACKLOG,
    HEURISTIC_OUTCOME,
    MESSAGES_UNREADABLE,
    MIXED_VERSIONS,
    NO_CONSUMERS,
    OLD_MESSAGES,
    PIPELINE_BEHIND,
    PIPELINE_FAILING,
    QUEUE_PAUSED,
    RESOURCE_UNREACHABLE,
    SKEW_S,
    TRANSACTION_IN_DOUBT,
    Condition,
    Level,
    Question,
)
from xabridge.console.view import address
from xabridge.text import age, amount, listed, several

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xabridge.console.pages.nodes import NodeLine
    from xabridge.console.pages.pipelines import PipelineView
    from xabridge.operations.survey import TransactionView

NAMED: Final = 3
"""So many queues, nodes or transactions are named in one line."""
FAILING: Final = 0.2
"""The share of failures that is the condition."""
_SAID: Final[dict[Condition, tuple[str, str]]] = {
    DEAD_LETTERS: ("has new dead letters", "have new dead letters"),
    OLD_MESSAGES: ("has old messages", "have old messages"),
    NO_CONSUMERS: ("has messages and no consumers", "have messages and no consumers"),
    QUEUE_PAUSED: ("is paused", "are paused"),
    GROWING_BACKLOG: ("gets more messages than it gives", "get more messages than they give"),
    MESSAGES_UNREADABLE: ("has messages that can’t be read", "have messages that can’t be read"),
}
"""What is said of one queue, and of several."""
_ORDERS: Final = {OLD_MESSAGES: "oldest"}
"""By what the page of queues is sorted, if not by the number of messages."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A condition that holds: `said` in words, and the page that has more; `command`, what to do first, where more is
    known than the condition says."""

    condition: Condition
    said: str
    page: str
    command: str = ""

    @property
    def first(self) -> str:
        """What to type first."""
        return self.command or self.condition.command


@dataclass(frozen=True, slots=True)
class Problems:
    """All of them, the most urgent first; and of whom nothing is known, by question: who, and why."""

    found: tuple[Problem, ...]
    unknown: Mapping[Question, tuple[tuple[str, str], ...]]
    away: frozenset[str] = frozenset()
    """Who is away, which is a problem already."""

    def of(self, question: Question) -> list[Problem]:
        """Those that answer a question with no."""
        return [problem for problem in self.found if problem.condition.question is question]

    def state(self, question: Question) -> str:
        """The answer."""
        return "trouble" if self.of(question) else "not known yet" if self.unknown.get(question) else "fine"

    def look(self, question: Question) -> str:
        """How the answer looks."""
        levels = {problem.condition.level for problem in self.of(question)}
        if levels:
            return "wrong" if Level.PAGE in levels else "warn"
        return "unknown" if self.unknown.get(question) else "good"

    @property
    def silent(self) -> list[tuple[str, str]]:
        """Of whom nothing is known, and why; those who are away are not named again."""
        every = dict.fromkeys(one for those in self.unknown.values() for one in those)
        return [(who, why) for who, why in every if who not in self.away]


class ProblemList:
    """Puts them together. What is added twice is one problem."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}
        self._unknown: dict[Question, dict[tuple[str, str], None]] = {question: {} for question in Question}
        self._away: set[str] = set()

    def unknown(self, who: str, why: str, *questions: Question) -> None:
        """Nothing is known of these questions from `who`; of all, if none is named."""
        for question in questions or tuple(Question):
            self._unknown[question][who, why] = None

    def add(self, condition: Condition, said: str, page: str, command: str = "") -> None:
        """A condition holds."""
        self._found[Problem(condition, said, page, command)] = None

    def add_silent(self, kind: str, name: str, why: str, page: str, *, away: bool, health: str = "") -> None:
        """A broker or a node has not answered: because it is away, or nothing is known of it yet. `health`: the URL at
        which it says how it is, if that is known."""
        if away:
            self.add(AWAY, f"{kind} {name} is away: {why}", page, f"{AWAY.command} {health}" if health else "")
            self._away.add(f"{kind} {name}")
        else:
            self.unknown(f"{kind} {name}", why)

    @property
    def put_together(self) -> Problems:
        """All that were added."""
        urgency = {condition: number for number, condition in enumerate(CONDITIONS)}
        found = sorted(self._found, key=lambda problem: urgency[problem.condition])
        unknown = {question: tuple(those) for question, those in self._unknown.items()}
        return Problems(tuple(found), unknown, frozenset(self._away))

    # -- from what was asked
    def add_broker(self, broker: str, answer: Mapping[str, Any] | None) -> None:
        """What a broker has found of its conditions; None: it is of a version that does not look for them."""
        if answer is None:
            self.unknown(f"broker {broker}", "its version does not look for what is wrong")
            return
        if answer["looked"] is None:
            self.unknown(f"broker {broker}", "it has not looked at all of its queues yet")
        for found in answer["conditions"]:
            condition = BY_NAME.get(found["name"])  # None: the broker is newer than this console
            if condition is not None and found["count"]:
                self.add(condition, _said(condition, broker, found), _page(condition, broker, found))

    def add_clock(self, broker: str, ahead_s: float, uncertain_s: float) -> None:
        """A broker's clock, compared with that of this machine."""
        if abs(ahead_s) - uncertain_s >= SKEW_S:
            way = "ahead of" if ahead_s > 0 else "behind"
            self.add(CLOCK_OFF, f"the clock of {broker} is {age(abs(ahead_s))} {way} the console’s", "/connections")

    def add_versions(self, versions: Mapping[str, str]) -> None:
        """The versions of brokers, nodes and the console."""
        by_version: dict[str, list[str]] = {}
        for who, version in versions.items():
            by_version.setdefault(version or "an older one", []).append(who)
        if len(by_version) > 1:
            said = "; ".join(f"{version}: {_few(who)}" for version, who in by_version.items())
            self.add(MIXED_VERSIONS, f"several versions are at work: {said}", "/nodes")

    def add_nodes(self, nodes: Iterable[NodeLine]) -> None:
        """What keeps nodes from their work, and what fails there."""
        for one in nodes:
            if one.node is None:
                continue
            for why in one.node.trouble:
                self.add(RESOURCE_UNREACHABLE, f"node {one.name}: {why}", "/nodes")
            for consumer in one.node.consumers:
                for why in consumer.trouble:
                    self.add(CONSUMER_TROUBLED, f"{one.name}, consumer of {consumer.queue}: {why}", "/nodes")
                failed, every = consumer.rates.get("failed", 0.0), sum(consumer.rates.values())
                if failed > FAILING * every:
                    share = f"{100 * failed / every:.0f} % of what it gets"
                    self.add(CONSUMER_FAILING, f"{one.name}, consumer of {consumer.queue}: {share} fails", "/nodes")

    def add_doubts(self, stuck: Sequence[TransactionView], oldest_s: Sequence[float | None]) -> None:
        """Transactions that are in doubt for longer than recovery takes; those that were completed against their
        decision are another condition."""
        by_hand = [view for view in stuck if view.against]
        waiting = [(seconds, view) for seconds, view in zip(oldest_s, stuck, strict=True) if not view.against]
        if by_hand:
            said = f"{several(len(by_hand), 'transaction')} completed against the decision: "
            self.add(HEURISTIC_OUTCOME, said + _few([view.name for view in by_hand]), "/transactions")
        if waiting:
            longest = max((seconds for seconds, _ in waiting if seconds is not None), default=None)
            since = "" if longest is None else f", the oldest for {age(longest)}"
            said = f"{several(len(waiting), 'transaction')} in doubt{since}: {_few([view.name for _, view in waiting])}"
            self.add(TRANSACTION_IN_DOUBT, said, "/transactions")

    def add_unasked(self, unreachable: Mapping[str, str], brokers: Iterable[str]) -> None:
        """Who has not said what is in doubt there: brokers and nodes, which may be asked still, and resources."""
        own = set(brokers)
        for name, why in unreachable.items():
            if name in own or name.startswith("node "):
                self.unknown(f"broker {name}" if name in own else name, why, Question.STUCK)
            else:
                self.unknown(name, why, Question.STUCK)
                self.add(RESOURCE_UNREACHABLE, f"{name}: {why}", "/transactions")
                self._away.add(name)

    def add_pipelines(self, pipelines: Iterable[PipelineView]) -> None:
        """Those that stand still, and those whose batches fail."""
        for one in pipelines:
            name = one.status.pipeline
            if one.stands:
                self.add(
                    PIPELINE_BEHIND, f"{name} stands still: {several(one.waiting or 0, 'message')} wait", "/pipelines"
                )
            if one.status.suspects:
                self.add(PIPELINE_FAILING, f"batches of {name} fail", "/pipelines")
            if one.orphans:
                self.add(PIPELINE_FAILING, f"orphans of {name} hold messages or rows", "/pipelines")


def _few(names: Sequence[str]) -> str:
    """The first of these names."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (", ".join(names[:NAMED]) if more else listed(names)) + more


def _said(condition: Condition, broker: str, found: Mapping[str, Any]) -> str:
    count, worst = int(found["count"]), found["worst"]
    if condition is BRANCH_IN_DOUBT:
        return f"{several(count, 'branch')} at {broker} in doubt, the oldest for {age(worst[0]['value'])}"
    if condition not in _SAID:
        return f"{broker}: {condition.means}"
    words = _SAID[condition][count > 1]
    named = _few(
        [*(f"{one['name']} ({_value(condition, one['value'])})" for one in worst[:NAMED]), *[""] * (count - NAMED)]
    )
    return f"{several(count, 'queue')} of {broker} {words}: {named}"


def _value(condition: Condition, value: float) -> str:
    return age(value) if condition is OLD_MESSAGES else amount(value)


def _page(condition: Condition, broker: str, found: Mapping[str, Any]) -> str:
    if condition is BRANCH_IN_DOUBT:
        return "/transactions"
    if condition not in _SAID:
        return address("/queues", broker=broker)
    worst = found["worst"]
    if condition is DEAD_LETTERS:
        return address("/dead", broker=broker, queue=worst[0]["name"] if found["count"] == 1 else "")
    if found["count"] == 1:
        return address(f"/b/{broker}/queue", name=worst[0]["name"])
    return address("/queues", broker=broker, by=_ORDERS.get(condition, "depth"))
