"""What a pipeline is doing, for people: nothing is changed, and nobody who is at work is disturbed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xa import Xid


@dataclass(frozen=True, slots=True)
class EpochStatus:
    """A global transaction of the pipeline, as the log has it. `epoch` is 0 for a batch that read nothing.

    `state`: active, committed, aborted or done. `logged`: Spark is known to have logged it.
    """

    epoch: int
    gtrid: bytes
    incarnation: int
    state: str
    branches: int
    logged: bool
    changed_at: float


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline. `prepared` are the branches in doubt, by resource; None of a resource that can't be reached, with
    why in `unreachable`."""

    pipeline: str
    log_id: bytes
    incarnation: int
    driver: str
    reader: str
    taken_at: float
    epochs: tuple[EpochStatus, ...]
    prepared: dict[str, tuple[Xid, ...] | None]
    unreachable: dict[str, str]


def pipelines(log: str) -> tuple[str, ...]:
    """The pipelines that keep their decisions in `log`."""
    raise NotImplementedError


def status(pipeline: str, log: str, resources: tuple[tuple[str, str], ...], *, last: int = 20) -> PipelineStatus:
    """The state of `pipeline`: its last epochs, newest first. LogMissing: there is none in `log`."""
    raise NotImplementedError
