"""NodeLink: what one node tells on its page `/node` (docs/operations.md), asked over HTTP with its token.

However many pages show it, the node is asked once in KEPT_S. One that is away costs a page nothing: what failed last is
told at once, and the next attempt goes on behind the page. What a node says is checked before it is shown, because any
process could listen at that address.
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
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from anyio.to_thread import run_sync

from xabridge.console.brokers import Away

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xabridge.console.settings import WatchedNode

KEPT_S: Final = 1.5
ANSWER_S: Final = 3.0
PATIENCE_S: Final = 1.5
MOST_OCTETS: Final = 16 << 20


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
class Live:
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
    """What a node has told."""

    node: str
    pid: int
    trouble: tuple[str, ...]
    waiting: int
    live: tuple[Live, ...]
    slowest: tuple[Completed, ...]
    last: tuple[Completed, ...]
    consumers: tuple[Consumer, ...]


class NodeLink:
    """One node. `look` is called on the event loop."""

    def __init__(self, watched: WatchedNode, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = watched.name
        self._watched = watched
        self._clock = clock
        self._latest: tuple[float, Node | Away] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def look(self) -> Node:
        """What it tells. Away: it can't be reached, or what it says is no page of a node."""
        latest = self._latest
        if latest is None or self._clock() - latest[0] >= KEPT_S:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            if latest is None or isinstance(latest[1], Node):
                await asyncio.wait({self._asking}, timeout=PATIENCE_S)
        latest = self._latest
        if latest is None:
            raise Away(f"{self.name} has not answered yet")
        if isinstance(latest[1], Away):
            raise latest[1]
        if self._clock() - latest[0] >= KEPT_S + PATIENCE_S + ANSWER_S:
            raise Away(f"{self.name} does not answer")
        return latest[1]

    async def _ask(self) -> None:
        try:
            found: Node | Away = await run_sync(self._asked, abandon_on_cancel=True)
        except Away as away:
            found = away
        finally:
            self._asking = None
        self._latest = self._clock(), found

    def _asked(self) -> Node:
        parts = urlsplit(self._watched.url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        connection: HTTPConnection
        if secure:
            connection = HTTPSConnection(host, port, timeout=ANSWER_S, context=ssl.create_default_context())
        else:
            connection = HTTPConnection(host, port, timeout=ANSWER_S)
        try:
            with closing(connection):
                path = f"{parts.path.rstrip('/')}/node"
                connection.request("GET", path, headers={"Authorization": f"Bearer {self._watched.token}"})
                response = connection.getresponse()
                body = response.read(MOST_OCTETS + 1)
        except (OSError, HTTPException, ValueError) as error:
            told = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Away(f"{self.name} can't be reached: {told}") from None
        if response.status == 401:
            raise Away(f"{self.name} has another token")
        if response.status == 404:
            raise Away(f"{self.name} has no page /node: set http_token_env there")
        if response.status != 200 or len(body) > MOST_OCTETS:
            raise Away(f"{self.name} does not answer as a node does: status {response.status}, {len(body)} octets")
        try:
            return node_of(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise Away(f"{self.name} does not answer as a node does") from None


def node_of(told: Mapping[str, Any]) -> Node:
    """What a page says. ValueError, KeyError, TypeError or AttributeError: it is none (or OverflowError)."""
    return Node(
        str(told["node"]),
        int(told["pid"]),
        _texts(told["trouble"]),
        int(told["waiting"]),
        tuple(
            Live(
                str(one["name"]), _number(one["age_s"]), _number(one["timeout_s"]), _state(one),
                _texts(one["resources"]),
            )
            for one in told["live"]
        ),
        tuple(map(_completed, told["slowest"])),
        tuple(map(_completed, told["last"])),
        tuple(
            Consumer(
                str(one["queue"]), str(one["state"]), int(one["workers"]), int(one["busy"]), _numbers(one["counts"]),
                _numbers(one["rates"]), _texts(one["trouble"]),
            )
            for one in told["consumers"]
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


def _texts(told: list[Any]) -> tuple[str, ...]:
    return tuple(map(str, told))


def _number(told: Any, most: float = 1e9) -> float:
    number = float(told)
    if not isfinite(number) or not 0 <= number <= most:
        raise ValueError(f"{told!r} is no number of a node")
    return number


def _numbers(told: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): _number(value, 1e15) for name, value in told.items()}
