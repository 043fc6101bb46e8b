"""The driver's branch for the rows that tasks have staged by key, from its start to its vote."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

from tm.log import Branch
from tm.two_phase.ports import code_of
from tm.two_phase.return_codes import Verb
from xa import TMFAIL, TMSUCCESS, Code, XaError
from xabridge.pipeline.core.errors import BatchRefused
from xabridge.pipeline.core.resources import ask_branches, call_resource, database_of, prepared_branches
from xabridge.pipeline.core.retry import is_outage
from xabridge.pipeline.core.task.databases import StagedRowsLost
from xabridge.pipeline.core.xids import is_upsert, upsert_xid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tm.resources import Resource
    from xabridge.pipeline.core.task.staged_rows import StagedRows

logger: Final = logging.getLogger("xabridge.pipeline")

PAUSES_S: Final = (0.1, 0.5, 2.0)
"""How long to wait before each further try, if another transaction blocks the rows."""


def upsert_staged_rows(
    resource: Resource,
    gtrid: bytes,
    staged: Sequence[StagedRows],
    pipeline: bytes,
    *,
    entropy: Callable[[int], bytes] = os.urandom,
    sleep: Callable[[float], None] = time.sleep,
) -> Branch | None:
    """Upserts the rows under a branch, and prepares it. Returns the branch; None where nothing had to be changed.
    BatchRefused: the rows could not be upserted, and no branch is left. `pipeline` is the prefix of its gtrids."""
    for pause_s in (*PAUSES_S, None):
        branch = Branch(resource.name, upsert_xid(gtrid, entropy(8)))
        try:
            return _prepared(resource, branch, staged, pipeline)
        except _RowsLocked as error:
            if pause_s is None:
                table = ", ".join(sorted({one.target.table for one in staged}))
                raise BatchRefused(f"a transaction outside of this pipeline has locked {table}: {error}") from error
            logger.warning("%s: another transaction blocks rows by key: %s", resource.name, error)
            sleep(pause_s)
    raise AssertionError("unreachable: the last pause is None")


class _RowsLocked(Exception):
    """Another transaction blocks the rows."""


def _prepared(resource: Resource, branch: Branch, staged: Sequence[StagedRows], pipeline: bytes) -> Branch | None:
    rm, xid = resource.rm, branch.xid
    database = database_of(resource.name, resource.url)
    mine = {resource.name: resource}
    try:
        earlier = [one for one in prepared_branches(resource, xid.gtrid) if one.gtrid == xid.gtrid and is_upsert(one)]
        if earlier:  # a try whose connection was lost has prepared one: it has the locks that this one needs
            ask_branches(mine, Verb.ROLLBACK, [Branch(resource.name, one) for one in earlier])
        database.before_upsert(resource, resource.url, xid.gtrid, pipeline)
        call_resource(resource, "start", lambda: rm.start(xid, resource.rmid))
    except XaError as error:
        raise BatchRefused(f"{resource.name}: rows by key can't be written now: {error}", outage=True) from error
    except database.errors as error:
        outage = database.fault(error).outage
        raise BatchRefused(f"{resource.name}: rows by key can't be written: {error}", outage=outage) from error

    try:
        database.upsert(resource, xid.gtrid, staged, pipeline)
        answer = vote(mine, branch)
    except BaseException as error:
        ask_branches(mine, Verb.END, [branch], TMFAIL)
        ask_branches(mine, Verb.ROLLBACK, [branch])
        if isinstance(error, XaError):
            resource.failed(error)
        message = f"{resource.name}: rows by key can't be written: {error}"
        if isinstance(error, database.errors):
            fault = database.fault(error)
            if fault.in_the_way:
                raise _RowsLocked(str(error)) from error
            raise BatchRefused(message, of_rows=fault.of_rows, outage=fault.outage) from error
        if isinstance(error, XaError | StagedRowsLost):
            raise BatchRefused(message, of_rows=_is_integrity(error), outage=is_outage(error)) from error
        raise
    return None if answer is Code.XA_RDONLY else branch


def _is_integrity(error: Exception) -> bool:
    return isinstance(error, XaError) and error.code is Code.XA_RBINTEGRITY


def vote(resources: Mapping[str, Resource], branch: Branch) -> Code:
    """Ends and prepares the branch, and returns its vote. XaError."""
    for verb, flags in ((Verb.END, TMSUCCESS), (Verb.PREPARE, 0)):
        (answer,) = ask_branches(resources, verb, [branch], flags)
        if isinstance(answer, XaError):
            raise answer
    return code_of(answer)
