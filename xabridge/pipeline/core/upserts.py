"""Upserts: the driver's branch for the rows that tasks have staged, from its start to its vote."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

import psycopg

from tm.effects import Call, code_of
from tm.log import Branch
from tm.performer import Performer
from tm.verdicts import Verb
from xa import TMFAIL, TMSUCCESS, Code, XaError
from xabridge.pipeline.core.errors import BatchRefused
from xabridge.pipeline.core.naming import is_upsert, upsert_xid
from xabridge.pipeline.core.resources import asked, database, prepared
from xabridge.pipeline.core.staged_rows import RowsGone, is_loss, is_of_rows, upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.resources import Resource
    from xabridge.pipeline.core.staged_rows import Staged

logger: Final = logging.getLogger("xabridge.pipeline")

PAUSES_S: Final = (0.1, 0.5, 2.0)
"""How long to wait before each further try, where somebody else's transaction was in the way."""
_IN_THE_WAY: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


def upserted(
    resource: Resource,
    gtrid: bytes,
    staged: Sequence[Staged],
    pipeline: bytes,
    *,
    entropy: Callable[[int], bytes] = os.urandom,
    sleep: Callable[[float], None] = time.sleep,
) -> Branch | None:
    """The prepared branch; None where nothing had to be changed. BatchRefused: there is none. `pipeline`: what its
    gtrids begin with."""
    for pause_s in (*PAUSES_S, None):
        branch = Branch(resource.name, upsert_xid(gtrid, entropy(8)))
        try:
            return _prepared(resource, branch, staged, pipeline)
        except _IN_THE_WAY as error:
            if pause_s is None:
                table = ", ".join(sorted({one.target.table for one in staged}))
                raise BatchRefused(f"{table} is locked, by none of this pipeline's: {error}") from error
            logger.warning("%s: somebody else's transaction is in the way of rows by key: %s", resource.name, error)
            sleep(pause_s)
    raise AssertionError("unreachable: the last pause is None")


def _prepared(resource: Resource, branch: Branch, staged: Sequence[Staged], pipeline: bytes) -> Branch | None:
    rm, xid = database(resource), branch.xid
    performer = Performer({resource.name: resource}, None)
    try:
        earlier = [one for one in prepared(resource, xid.gtrid) if one.gtrid == xid.gtrid and is_upsert(one)]
        if earlier:  # of a try whose connection was lost: it has the locks that this one needs
            performer.perform(Call(Verb.ROLLBACK, tuple(Branch(resource.name, one) for one in earlier)))
        asked(resource, "start", lambda: rm.start(xid, resource.rmid))
    except XaError as error:
        raise BatchRefused(f"{resource.name}: rows by key can't be written now: {error}", outage=True) from error
    try:
        upsert(rm.session(resource.rmid).psycopg, xid.gtrid, staged, pipeline)
        vote = _vote(performer, branch)
    except BaseException as error:
        performer.perform(Call(Verb.END, (branch,), TMFAIL))
        performer.perform(Call(Verb.ROLLBACK, (branch,)))
        if isinstance(error, XaError):
            resource.failed(error)
        if isinstance(error, (psycopg.Error, XaError, RowsGone)) and not isinstance(error, _IN_THE_WAY):
            of_rows = is_of_rows(error) if isinstance(error, psycopg.Error) else _is_integrity(error)
            raise BatchRefused(
                f"{resource.name}: rows by key can't be written: {error}", of_rows=of_rows, outage=is_loss(error)
            ) from error
        raise
    return None if vote is Code.XA_RDONLY else branch


def _is_integrity(error: Exception) -> bool:
    return isinstance(error, XaError) and error.code is Code.XA_RBINTEGRITY


def _vote(performer: Performer, branch: Branch) -> Code:
    for verb, flags in ((Verb.END, TMSUCCESS), (Verb.PREPARE, 0)):
        (answer,) = performer.perform(Call(verb, (branch,), flags))
        if isinstance(answer, XaError):
            raise answer
    return code_of(answer)
