"""PipelineQuestions: what PipelineWatch asks of the decision log and of each resource manager, in their threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tm.log import LogError, LogMissing
from xa import XaError
from xabridge.console.brokers import BrokerProblem, BrokerUnreachable
from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.ledger.status import prefixes, prepared_at, statuses
from xabridge.pipeline.core.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xabridge.console.settings import WatchedPipelines
    from xabridge.pipeline.core.ledger.status import PipelineStatus, Scanned


class PipelineQuestions:
    """The questions. Each raises BrokerProblem, or BrokerUnreachable of a resource manager."""

    def __init__(self, watched: WatchedPipelines, last: int) -> None:
        self._log = watched.log
        self._last = last
        self._urls = dict(watched.resources)
        self._opened = {name: Resources() for name in self._urls}

    def prefixes(self) -> dict[str, bytes]:
        """The pipelines, and how their gtrids begin."""
        try:
            return prefixes(self._log)
        except LogMissing:  # no pipeline has run yet
            return {}
        except (LogError, ValueError) as error:
            raise BrokerProblem(str(error)) from None

    def prepared_at(self, resource: str, known: Mapping[str, bytes]) -> Scanned:
        """Their prepared branches at a resource."""
        try:
            return prepared_at(self._opened[resource].get(resource, self._urls[resource]), known)
        except XaError as error:
            raise BrokerUnreachable(error.message) from None
        except PipelineError as error:
            raise BrokerUnreachable(str(error)) from None

    def statuses(self, known: Mapping[str, bytes], scanned: Mapping[str, Scanned | str]) -> tuple[PipelineStatus, ...]:
        """Their state."""
        try:
            return statuses(self._log, known, scanned, last=self._last)
        except (LogError, ValueError) as error:
            raise BrokerProblem(str(error)) from None

    def close(self, resource: str) -> None:
        """Closes a resource."""
        self._opened[resource].close()
