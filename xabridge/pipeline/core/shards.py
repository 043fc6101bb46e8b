"""Shards: which queues of which brokers a source reads.

A source names its shards by queues of brokers, or by patterns of queues, in which `*` stands for any characters. For
each epoch the patterns are matched anew, and the plan of the epoch names the shard of each task: queues of one broker,
which the task reads one after the other.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from xabridge.pipeline.core.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Shard:
    """Queues of the broker `resource`."""

    resource: str
    queues: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.resource}: {', '.join(self.queues)}"

    def sorted(self) -> Shard:
        """The same queues in the order that does not depend on the task."""
        return Shard(self.resource, tuple(sorted(self.queues)))


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """What a source reads in an epoch, as the ledger keeps it: from these brokers, by a task for each of `shards`, in
    the order of their indexes. Brokers that are away were `skipped`, each with the reason."""

    resources: tuple[str, ...] = ()
    shards: tuple[Shard, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    def as_text(self) -> str:
        """The text that the ledger stores."""
        if not self.resources:
            return ""
        shards = [[shard.resource, *shard.queues] for shard in self.shards]
        return json.dumps({"resources": self.resources, "shards": shards, "skipped": dict(self.skipped)})

    @classmethod
    def from_text(cls, text: str) -> PlannedRead:
        """What is stored. PipelineError: the text is none."""
        if not text:
            return cls()
        with _readable(text):
            stored = json.loads(text)
            skipped = tuple(stored["skipped"].items())
            return cls(tuple(stored["resources"]), tuple(map(_shard, stored["shards"])), skipped)


def shard_as_text(shard: Shard | None) -> str:
    """The text that the ledger stores."""
    return "" if shard is None else json.dumps([shard.resource, *shard.queues])


def shard_from_text(text: str) -> Shard | None:
    """The shard that is stored. PipelineError: the text is none."""
    with _readable(text):
        return _shard(json.loads(text)) if text else None


def _shard(stored: list[str]) -> Shard:
    resource, *queues = stored
    return Shard(resource, tuple(queues))


@contextmanager
def _readable(text: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PipelineError(
            f"the ledger holds {text[:200]!r} as what an epoch reads, which can't be read ({error!r}): the row is "
            "damaged"
        ) from error


def is_pattern(queue: str) -> bool:
    """Whether it names every queue that matches, and not one queue."""
    return ANY in queue


def matches(pattern: str, queue: str) -> bool:
    """Whether the pattern names the queue."""
    return _compiled(pattern).fullmatch(queue) is not None


def matches_queue(pattern: str, queue: Mapping[str, Any]) -> bool:
    """Whether the pattern names a queue that a broker has described. Queues for dead letters are left out, because what
    is there was read before, and so are queues that end with a connection."""
    return matches(pattern, queue["name"]) and queue["lasting"] and not queue["for-dead-letters"]


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split(ANY))), re.DOTALL)


def overlap(one: str, other: str) -> bool:
    """Whether there can be a queue that both of them name. Each is a pattern or a queue."""
    reached = {(0, 0)}
    waiting = [(0, 0)]
    while waiting:
        i, j = waiting.pop()
        if i == len(one) and j == len(other):
            return True

        following: list[tuple[int, int]] = []
        if i < len(one) and one[i] == ANY:
            following += [(i + 1, j)] + ([(i, j + 1)] if j < len(other) else [])
        if j < len(other) and other[j] == ANY:
            following += [(i, j + 1)] + ([(i + 1, j)] if i < len(one) else [])
        if i < len(one) and j < len(other) and one[i] == other[j] != ANY:
            following.append((i + 1, j + 1))
        waiting += [state for state in following if state not in reached]
        reached.update(following)
    return False
