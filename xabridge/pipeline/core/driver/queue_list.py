"""QueueList: asks the management node of a broker which queues there are."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from dtx.amqp.conditions import Condition
from dtx.protocol.conditions import RefusedError
from rm_amqp.management import ManagementClient
from xa import Code, XaError, xa_error
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.shards import ANY, matches_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tm.resources import Resource


class QueueList:
    """The queues of one broker, over a connection of its own, which is opened when it is needed."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._client: ManagementClient | None = None

    def matching(self, patterns: Sequence[str]) -> dict[str, int]:
        """The queues that match one of the patterns, with how many messages each has. XaError: the broker can't be
        asked. PipelineError: the user may not ask."""
        was_open = self._client is not None
        try:
            return self._matching(patterns)
        except XaError as error:
            self.close()
            if not was_open or error.code is not Code.XAER_RMFAIL:
                raise
        try:
            return self._matching(patterns)  # the connection had been lost before
        except XaError:
            self.close()
            raise

    def _matching(self, patterns: Sequence[str]) -> dict[str, int]:
        if self._client is None:
            self._client = ManagementClient(self._resource.url)
        found: dict[str, int] = {}

        try:
            for pattern in patterns:
                for queue in self._from(self._client, pattern.partition(ANY)[0]):
                    if matches_queue(pattern, queue):
                        found[queue["name"]] = _available(queue)
        except RefusedError as error:
            if error.refusal.condition == Condition.UNAUTHORIZED:
                raise PipelineError(
                    f"{self._resource.name} does not tell its queues ({error}). A pattern of queues needs a user with "
                    "the permission view; otherwise name the queues without *"
                ) from error
            raise xa_error(Code.XAER_RMERR, f"queues: {error}") from error
        return found

    @staticmethod
    def _from(client: ManagementClient, prefix: str) -> Iterator[dict[str, Any]]:
        """The queues that begin with `prefix`, without the many that come before and after them."""
        pages = client.pages("queues", key="name", start=prefix[:-1])
        return (
            queue
            for queue in takewhile(lambda queue: queue["name"][: len(prefix)] <= prefix, pages)
            if queue["name"].startswith(prefix)
        )

    def close(self) -> None:
        """Closes the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _available(queue: dict[str, Any]) -> int:
    """How many messages a task could take now."""
    return 0 if queue["paused"] else max(queue["depth"] - queue["held"] - queue["delayed"], 0)
