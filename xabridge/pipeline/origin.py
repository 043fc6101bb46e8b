"""Describes the branches of a pipeline for `xabridge recover` (`xabridge.cli.origins`)."""

from __future__ import annotations

from xa import Gtrid, Xid
from xabridge.operations.scan import Origin
from xabridge.pipeline.core.xids import TRY_BITS, epoch_of, is_sink, is_source, is_upsert, source_epoch, source_index


def describe(xid: Xid) -> Origin | None:
    """A branch of a pipeline, in words."""
    ours = Gtrid.of(xid)
    if ours is None or not (is_source(xid) or is_sink(xid)):
        return None
    epoch, tries = divmod(ours.sequence, 1 << TRY_BITS)
    again = f", try {tries}" if tries > 1 else ""
    command = f"xabridge pipeline status {ours.node}"
    return Origin(f"pipeline {ours.node}, epoch {epoch}{again}", _branch(xid), command)


def _branch(xid: Xid) -> str:
    if is_source(xid):
        epoch = source_epoch(xid)
        of_another = f" for epoch {epoch}, decided with it" if epoch != epoch_of(xid.gtrid) else ""
        return f"messages that source partition {source_index(xid)} took{of_another}"
    if is_upsert(xid):
        return "rows by key"
    _, partition, task, *_ = xid.bqual.decode("ascii", "replace").split("/")
    return f"rows and messages that task {task} wrote as partition {partition}"
