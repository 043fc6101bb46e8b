"""The driver's branch for the files that tasks have written for Delta tables, from its start to its vote."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tm.log import Branch
from tm.two_phase.return_codes import Verb
from xa import TMFAIL, Code, Gtrid, XaError
from xabridge.pipeline.core.driver.upsert_branch import vote
from xabridge.pipeline.core.errors import BatchRefused
from xabridge.pipeline.core.resources import ask_branches, call_resource, lake, prepared_branches
from xabridge.pipeline.core.xids import is_upsert, upsert_xid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.resources import Resource
    from xabridge.pipeline.core.values import StagedFiles


def append_staged_files(
    resource: Resource,
    gtrid: bytes,
    staged: Sequence[StagedFiles],
    *,
    entropy: Callable[[int], bytes] = os.urandom,
) -> Branch | None:
    """Appends the files under a branch, and prepares it. Returns the branch; None where no file has rows.
    BatchRefused: it could not be prepared, and no branch is left. The work of earlier batches that was not accepted is
    removed."""
    rm, branch = lake(resource), Branch(resource.name, upsert_xid(gtrid, entropy(8)))
    mine = {resource.name: resource}
    try:
        earlier = [one for one in prepared_branches(resource, gtrid) if one.gtrid == gtrid and is_upsert(one)]
        if earlier:  # a try that was prepared, although its answer was lost
            ask_branches(mine, Verb.ROLLBACK, [Branch(resource.name, one) for one in earlier])
        call_resource(resource, "open", lambda: rm.lake.remove_where(lambda other: _is_before(other, gtrid)))
        call_resource(resource, "start", lambda: rm.start(branch.xid, resource.rmid))
    except XaError as error:
        raise BatchRefused(f"{resource.name}: files can't be appended now: {error}", outage=True) from error

    try:
        for one in staged:
            rm.session(resource.rmid).add(one.work.table, one.work.files)
        answer = vote(mine, branch)
    except BaseException as error:
        ask_branches(mine, Verb.END, [branch], TMFAIL)
        ask_branches(mine, Verb.ROLLBACK, [branch])
        if isinstance(error, XaError):
            resource.failed(error)
            outage = error.code is Code.XAER_RMFAIL
            raise BatchRefused(f"{resource.name}: files can't be appended: {error}", outage=outage) from error
        raise
    return None if answer is Code.XA_RDONLY else branch


def _is_before(gtrid: bytes, present: bytes) -> bool:
    """Whether it is an earlier global transaction of the same pipeline."""
    try:
        one, now = Gtrid.decode(gtrid), Gtrid.decode(present)
    except ValueError:
        return False
    return (
        (one.node, one.log_id) == (now.node, now.log_id)
        and isinstance(one.incarnation, int)
        and isinstance(now.incarnation, int)
        and (one.incarnation, one.sequence) < (now.incarnation, now.sequence)
    )
