"""The xids of a pipeline: what its gtrids and bquals mean.

gtrid   a `Gtrid` of the pipeline's log: the pipeline's name, the log, the incarnation, and as sequence the epoch in
        the upper 48 bits and in the lower 16 which try at it this is
bqual   src/EPOCH/INDEX                what a source partition took: the same in each attempt at it. The sources of a
                                       query have epochs of their own in one global transaction
        snk/PARTITION/TASK/RANDOM      what one attempt of a task writes: no other attempt ever has it
        snk/key/0/RANDOM               what tasks have staged: rows by key and files, which the driver writes for all
        exc/RANDOM                     nothing: it stands for a failure that is not the messages' fault
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xa import FORMAT_ID, Gtrid, Xid

if TYPE_CHECKING:
    from tm.log import Branch

TRY_BITS: Final = 16
_SOURCE: Final = b"src/"
_SINK: Final = b"snk/"
_EXCUSE: Final = b"exc/"
_UPSERT: Final = b"snk/key/0/"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One incarnation of a pipeline: it makes gtrids, and knows which gtrids a process of it may resolve: those of this
    log, up to this incarnation."""

    pipeline: str
    log_id: bytes
    incarnation: int

    def gtrid(self, epoch: int, tries: int) -> bytes:
        """The global transaction of a try at an epoch."""
        return Gtrid(self.pipeline, self.log_id, self.incarnation, epoch << TRY_BITS | tries).encode()

    def owns(self, gtrid: bytes) -> bool:
        """Whether the log decides about it, and no incarnation after this one planned it."""
        try:
            read = Gtrid.decode(gtrid)
        except ValueError:
            return False
        return (
            read.node == self.pipeline
            and read.log_id == self.log_id
            and isinstance(read.incarnation, int)
            and read.incarnation <= self.incarnation
        )

    def planned(self, gtrid: bytes) -> bool:
        """Whether this very incarnation planned it."""
        return self.owns(gtrid) and Gtrid.decode(gtrid).incarnation == self.incarnation


def epoch_of(gtrid: bytes) -> int:
    """The epoch whose global transaction this is."""
    return Gtrid.decode(gtrid).sequence >> TRY_BITS


def source_xid(gtrid: bytes, epoch: int, index: int) -> Xid:
    """The branch of a source partition."""
    return Xid(FORMAT_ID, gtrid, _SOURCE + b"%d/%d" % (epoch, index))


def sink_xid(gtrid: bytes, partition: int, task: int, random: bytes) -> Xid:
    """The branch of an attempt at a task of the sink."""
    return Xid(FORMAT_ID, gtrid, sink_prefix(partition) + b"%d/%s" % (task, random.hex().encode("ascii")))


def upsert_xid(gtrid: bytes, random: bytes) -> Xid:
    """The branch of the driver for what all tasks have staged."""
    return Xid(FORMAT_ID, gtrid, _UPSERT + random.hex().encode("ascii"))


def is_upsert(xid: Xid) -> bool:
    """Whether the driver's, for what tasks have staged."""
    return xid.bqual.startswith(_UPSERT)


def excuse_xid(gtrid: bytes, random: bytes) -> Xid:
    """A branch that says why an attempt failed: not for its messages."""
    return Xid(FORMAT_ID, gtrid, _EXCUSE + random.hex().encode("ascii"))


def is_excuse(xid: Xid) -> bool:
    """Whether it says so."""
    return xid.bqual.startswith(_EXCUSE)


def sink_prefix(partition: int) -> bytes:
    """The common beginning of the bquals of every attempt at a task of the sink."""
    return _SINK + b"%d/" % partition


def is_source(xid: Xid) -> bool:
    """Whether a source partition's."""
    return xid.bqual.startswith(_SOURCE)


def is_sink(xid: Xid) -> bool:
    """Whether a task's of a sink."""
    return xid.bqual.startswith(_SINK) and xid.bqual.count(b"/") == 3


def source_index(xid: Xid) -> int:
    """The source partition of a branch."""
    return int(xid.bqual.rpartition(b"/")[2])


def source_epoch(xid: Xid) -> int:
    """The epoch whose source partition it is."""
    epoch, slash, _ = xid.bqual[len(_SOURCE) :].partition(b"/")
    return int(epoch) if slash else epoch_of(xid.gtrid)


def word(branch: Branch) -> str:
    """The word that says, in the ledger, whose branches are finished: sources and sinks of a resource apart."""
    return f"{'src' if is_source(branch.xid) else 'snk'}:{branch.resource}"
