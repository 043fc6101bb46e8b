"""These are the messages for a driver, source or sink that can't have a pipeline, or has lost it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from xabridge.pipeline.core.ledger.rows import PipelineRow


def not_bound(pipeline: str) -> str:
    """The error for a source or a sink of a query that the pipeline was not bound to."""
    return (
        f"pipeline {pipeline!r} is not bound to this start of a query, because its driver has not said which sources "
        "and which sink belong together. In the driver, call pipeline.register(spark) with the session that starts the "
        "query, before you start it"
    )


def read_by_another(pipeline: str, query: str, what: str) -> str:
    """The error for a source that is not the one that the pipeline is bound to."""
    return (
        f"pipeline {pipeline!r} is read by another query of this driver ({query}), which {what}. Stop that query "
        "first, or give this one a pipeline of its own"
    )


_ONE_DRIVER: Final = (
    "which can't decide anything any more. Run one driver for a pipeline: stop the other one, or give this one another "
    "name"
)


def taken(pipeline: str, row: PipelineRow | None, why: str) -> str:
    """The error for a driver that has lost the pipeline."""
    if row is None:
        return f"pipeline {pipeline!r} was removed from its log"
    at = datetime.fromtimestamp(row.taken_at, UTC).isoformat(sep=" ", timespec="seconds")
    return (
        f"pipeline {pipeline!r} was taken by driver {row.driver} at {at} (incarnation {row.incarnation}); {why}, "
        f"{_ONE_DRIVER}"
    )


def taken_meanwhile(pipeline: str, incarnation: int, own: int) -> str:
    """The error for a driver that loses the pipeline in the midst of a change. Who has it is in the pipeline's row."""
    return (
        f"pipeline {pipeline!r} was taken by another driver as incarnation {incarnation}; this process belongs to "
        f"incarnation {own}, {_ONE_DRIVER}"
    )
