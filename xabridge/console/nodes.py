"""NodeLink: what one node tells on its pages (docs/operations.md), asked over HTTP with its token, and what is finished
through it by hand with the other one.

However many pages show it, the node is asked once in KEPT_S. One that is away costs a page nothing: its last failure is
shown at once, and the next attempt goes on behind the page. What a node says is checked before it is shown, because any
process could listen at that address.

What is done through a node is asked for with a ticket that serves once. So if an answer is lost, it is asked for again
with the same ticket: a node that lives answers with the result. If it is dead, the result is unknown.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from anyio.to_thread import run_sync

from xabridge.console.brokers import BrokerProblem, BrokerUnreachable, NotAnsweredYet, RequestRefused, ResultUnknown
from xabridge.http_deadline import within
from xabridge.operations import survey_json
from xabridge.operations.service import ProposedAction, said_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xabridge.console.settings import WatchedNode
    from xabridge.operations.service import OperatorAnswer, OperatorRequest
    from xabridge.operations.survey import Survey

T = TypeVar("T")
KEPT_S: Final = 1.5
ANSWER_S: Final = 3.0
PATIENCE_S: Final = 1.5
MOST_OCTETS: Final = 16 << 20
POST_S: Final = 15.0
"""How long a node may take for an answer to what is done through it."""
DOING_S: Final = 40.0
"""How long what it does is waited for."""
LOST_S: Final = 6.0
"""After an answer was lost, how long it is asked for again."""
AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Step:
    """A resource was asked a verb; "" is the node's log."""

    resource: str
    verb: str
    after_s: float
    took_s: float
    code: str


@dataclass(frozen=True, slots=True)
class Completed:
    """A transaction that is over."""

    name: str
    began_at: float
    took_s: float
    outcome: str
    reasons: tuple[str, ...]
    phases: Mapping[str, float]
    steps: tuple[Step, ...]
    omitted: int


@dataclass(frozen=True, slots=True)
class LiveTransactionView:
    """A transaction that is under way."""

    name: str
    age_s: float
    timeout_s: float
    state: str
    resources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer: its workers, and its messages by what they came to, since the start and per second."""

    queue: str
    state: str
    workers: int
    busy: int
    counts: Mapping[str, float]
    rates: Mapping[str, float]
    trouble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """What a node reports."""

    node: str
    pid: int
    version: str
    """That of xabridge; "" of one that does not say it."""
    trouble: tuple[str, ...]
    waiting: int
    live: tuple[LiveTransactionView, ...]
    slowest: tuple[Completed, ...]
    last: tuple[Completed, ...]
    consumers: tuple[Consumer, ...]


@dataclass(frozen=True, slots=True)
class InDoubt:
    """What is in doubt at a node, as it sees that: its survey, the transactions that are under way there, by gtrid, and
    whether it may be acted through."""

    pid: int
    acting: bool
    survey: Survey
    live: frozenset[bytes]


class _Page(Generic[T]):
    """One page of a node: the latest of it, and the next attempt. `look` is called on the event loop."""

    def __init__(self, name: str, ask: Callable[[], T], clock: Callable[[], float]) -> None:
        self._name = name
        self._ask = ask
        self._clock = clock
        self._latest: tuple[float, T | BrokerUnreachable] | None = None
        self.asking: asyncio.Task[None] | None = None

    async def look(self) -> T:
        latest = self._latest
        if latest is None or self._clock() - latest[0] >= KEPT_S:
            if self.asking is None:
                self.asking = asyncio.create_task(self._asked())
            if latest is None or not isinstance(latest[1], BrokerUnreachable):
                await asyncio.wait({self.asking}, timeout=PATIENCE_S)
        latest = self._latest
        if latest is None:
            raise NotAnsweredYet(f"{self._name} has not answered yet")
        if isinstance(latest[1], BrokerUnreachable):
            raise latest[1]
        if self._clock() - latest[0] >= KEPT_S + PATIENCE_S + ANSWER_S:
            raise BrokerUnreachable(f"{self._name} does not answer")
        return latest[1]

    def forget(self) -> None:
        """Forgets what it said last, which is no longer true."""
        self._latest = None

    async def _asked(self) -> None:
        try:
            found: T | BrokerUnreachable = await run_sync(self._ask, abandon_on_cancel=True)
        except BrokerUnreachable as away:
            found = away
        finally:
            self.asking = None
        self._latest = self._clock(), found


class NodeLink:
    """One node."""

    def __init__(self, watched: WatchedNode, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = watched.name
        self.watched = watched
        self.page: _Page[Node] = _Page(self.name, self._node, clock)
        self._in_doubt: _Page[InDoubt | None] = _Page(self.name, self._asked_in_doubt, clock)

    async def look(self) -> Node:
        """What it tells. BrokerUnreachable: it can't be reached, or what it says is no page of a node."""
        return await self.page.look()

    async def in_doubt(self) -> InDoubt | None:
        """What is in doubt there; None: it has no such page. BrokerUnreachable."""
        return await self._in_doubt.look()

    @property
    def may_act(self) -> bool:
        """Whether the console has what lets it act there."""
        return bool(self.watched.act_token)

    async def choose(self, wanted: OperatorRequest) -> tuple[ProposedAction, str]:
        """What it would do there now, and the ticket with which it is done. BrokerUnreachable: nothing came;
        RequestRefused."""
        return await run_sync(self._choose, wanted)

    async def carry_out(self, ticket: str, *, heuristic: bool, who: str) -> tuple[OperatorAnswer, ...]:
        """Does what was shown. BrokerUnreachable, RequestRefused: nothing was done. ResultUnknown: it may have been
        done."""
        try:
            return await run_sync(self._carry_out, {"ticket": ticket, "heuristic": heuristic, "who": who})
        finally:
            self._in_doubt.forget()

    # -- in a thread
    def _node(self) -> Node:
        status, body = self._get("/node")
        if status == 404:
            raise BrokerUnreachable(f"{self.name} has no page /node: set http_token_env there")
        if status != 200 or len(body) > MOST_OCTETS:
            raise BrokerUnreachable(f"{self.name} does not answer as a node does: status {status}, {len(body)} octets")
        return self._read(body, node_of)

    def _asked_in_doubt(self) -> InDoubt | None:
        status, body = self._get("/node/in-doubt")
        if status == 404:
            return None
        if status == 503:
            raise BrokerUnreachable(f"{self.name} can't tell what is in doubt: {self._read(body, _why)}")
        if status != 200 or len(body) > MOST_OCTETS:
            raise BrokerUnreachable(f"{self.name} does not answer as a node does: status {status}, {len(body)} octets")
        return self._read(body, _in_doubt_of)

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            with closing(self._connection(ANSWER_S)) as connection, within(ANSWER_S, connection):
                connection.request("GET", self._path(path), headers={"Authorization": f"Bearer {self.watched.token}"})
                response = connection.getresponse()
                body = response.read(MOST_OCTETS + 1)
        except (OSError, HTTPException, ValueError) as error:
            raise BrokerUnreachable(f"{self.name} can't be reached: {_reason(error)}") from None
        if response.status == 401:
            raise BrokerUnreachable(f"{self.name} has another token")
        return response.status, body

    def _choose(self, wanted: OperatorRequest) -> tuple[ProposedAction, str]:
        asked = {"doing": wanted.doing, "name": wanted.name, "on": list(wanted.on), "gone": list(wanted.gone)}
        asked |= {"keys": list(wanted.keys)} if wanted.keys else {}
        try:
            answer = self._post("/node/preview", asked)
        except _AnswerLost as lost:
            raise BrokerUnreachable(f"{self.name} does not answer: {lost}") from None
        return self._read_answer(answer, _choice_of)

    def _carry_out(self, asked: Mapping[str, Any]) -> tuple[OperatorAnswer, ...]:
        until = time.monotonic() + DOING_S
        sent = False
        why = "it takes long"
        while True:
            try:
                answer = self._post("/node/act", asked)
                came = str(answer["state"])
                said = said_of(answer["said"]) if came == "done" else ()
                why = str(answer["why"]) if came in {"refused", "failed"} else why
            except (BrokerUnreachable, RequestRefused, _NoTicket) as trouble:  # nothing was done by this request
                if not sent and isinstance(trouble, _NoTicket):
                    raise RequestRefused(str(trouble)) from None
                if not sent:
                    raise
                if not isinstance(trouble, BrokerUnreachable):
                    raise self._unknown("it was started anew meanwhile") from None
                came = ""
            except (_AnswerLost, ValueError, KeyError, TypeError, AttributeError) as trouble:
                sent, came, why = True, "", str(trouble)
                until = min(until, time.monotonic() + LOST_S)

            sent = True
            if came == "done":
                return said
            if came == "refused":
                raise RequestRefused(why)
            if came == "failed":
                raise BrokerProblem(why)
            if time.monotonic() >= until:
                raise self._unknown(why)
            time.sleep(AGAIN_S)

    def _unknown(self, why: str) -> ResultUnknown:
        return ResultUnknown(f"it is unknown whether this was done by {self.name}: {why}. Look again")

    def _post(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """BrokerUnreachable, RequestRefused: it was not taken. _NoTicket. _Lost: unknown."""
        body = json.dumps(asked).encode()
        headers = {"Authorization": f"Bearer {self.watched.act_token}", "Content-Type": "application/json"}
        connected = False
        try:
            with closing(self._connection(POST_S)) as connection, within(POST_S, connection):
                connected = True
                connection.request("POST", self._path(path), body=body, headers=headers)
                response = connection.getresponse()
                answer = response.read(MOST_OCTETS + 1)
        except (OSError, HTTPException, ValueError) as error:
            if connected:
                raise _AnswerLost(_reason(error)) from None
            raise BrokerUnreachable(f"nothing was done: {self.name} can't be reached: {_reason(error)}") from None

        if response.status == 401:
            raise RequestRefused(f"nothing was done: {self.name} has another token for acting", right=True)
        if response.status == 404:
            raise RequestRefused(f"nothing was done: {self.name} can't be acted through: set http_act_token_env there")
        if response.status == 410:
            raise _NoTicket(self._read(answer, _why))
        if response.status in {400, 409}:
            raise RequestRefused(self._read(answer, _why))
        if response.status != 200:
            raise _AnswerLost(f"status {response.status}")

        try:
            content = json.loads(answer)
        except (ValueError, RecursionError):
            raise _AnswerLost("it does not answer as a node does") from None
        if not isinstance(content, dict):
            raise _AnswerLost("it does not answer as a node does")
        return content

    def _connection(self, patience_s: float) -> HTTPConnection:
        parts = urlsplit(self.watched.url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return HTTPSConnection(host, parts.port or 443, timeout=patience_s, context=ssl.create_default_context())
        return HTTPConnection(host, parts.port or 80, timeout=patience_s)

    @property
    def health(self) -> str:
        """The URL at which it says how it is, for `xabridge health`, which knows http alone; else empty."""
        parts = urlsplit(self.watched.url)
        return f"http://{parts.netloc}{self._path('/ready')}" if parts.scheme == "http" else ""

    def _path(self, path: str) -> str:
        return f"{urlsplit(self.watched.url).path.rstrip('/')}{path}"

    def _read(self, body: bytes, read: Callable[[Any], T]) -> T:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise BrokerUnreachable(f"{self.name} does not answer as a node does") from None
        return self._read_answer(answer, read)

    def _read_answer(self, answer: Any, read: Callable[[Any], T]) -> T:
        try:
            return read(answer)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise BrokerUnreachable(f"{self.name} does not answer as a node does") from None


class _AnswerLost(Exception):
    """The request was sent, and no answer came."""


class _NoTicket(Exception):
    """The node does not know the ticket."""


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _why(reply: Any) -> str:
    return str(reply["why"])


def _in_doubt_of(reply: Any) -> InDoubt:
    return InDoubt(
        int(reply["pid"]),
        reply["acting"] is True,
        survey_json.decode_survey(reply["survey"]),
        frozenset(bytes.fromhex(one) for one in reply["live"]),
    )


def _choice_of(reply: Any) -> tuple[ProposedAction, str]:
    refused, view = reply["refused"], reply["view"]
    choice = ProposedAction(
        _texts(reply["told"]),
        None if refused is None else str(refused),
        reply["needs_heuristic"] is True,
        None if view is None else survey_json.decode_transaction(view),
    )
    return choice, str(reply["ticket"])


def node_of(reply: Mapping[str, Any]) -> Node:
    """What a page says. ValueError, KeyError, TypeError or AttributeError: it is none (or OverflowError)."""
    return Node(
        str(reply["node"]),
        int(reply["pid"]),
        str(reply.get("version", "")),
        _texts(reply["trouble"]),
        int(reply["waiting"]),
        tuple(
            LiveTransactionView(
                str(one["name"]), _number(one["age_s"]), _number(one["timeout_s"]), _state(one),
                _texts(one["resources"]),
            )
            for one in reply["live"]
        ),
        tuple(map(_completed, reply["slowest"])),
        tuple(map(_completed, reply["last"])),
        tuple(
            Consumer(
                str(one["queue"]), str(one["state"]), int(one["workers"]), int(one["busy"]), _numbers(one["counts"]),
                _numbers(one["rates"]), _texts(one["trouble"]),
            )
            for one in reply["consumers"]
        ),
    )  # fmt: skip


def _state(one: Mapping[str, Any]) -> str:
    return f"{one['state']}, suspended" if one["suspended"] else str(one["state"])


def _completed(one: Mapping[str, Any]) -> Completed:
    return Completed(
        str(one["name"]),
        _number(one["began_at"], 1e11),
        _number(one["took_s"]),
        str(one["outcome"]),
        _texts(one["reasons"]),
        _numbers(one["phases"]),
        tuple(
            Step(str(resource), str(verb), _number(after_s), _number(took_s), str(code))
            for resource, verb, after_s, took_s, code in one["steps"]
        ),
        int(one["omitted"]),
    )


def _texts(values: list[Any]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _number(value: Any, most: float = 1e9) -> float:
    number = float(value)
    if not isfinite(number) or not 0 <= number <= most:
        raise ValueError(f"{value!r} is no number of a node")
    return number


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): _number(value, 1e15) for name, value in values.items()}
