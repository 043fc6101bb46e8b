"""A task's excuse tells the driver that its attempt failed and that no message is to blame."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from xa import TMSUCCESS, SharingBranches, XaError
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.resources import call_resource
from xabridge.pipeline.core.xids import excuse_xid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xabridge.pipeline.core.resources import Resources

logger: Final = logging.getLogger("xabridge.pipeline")


def excuse(urls: Iterable[tuple[str, str]], gtrid: bytes, resources: Resources) -> None:
    """Prepares a branch at one of the brokers, which says to the driver that the attempt failed and that its messages
    are not to blame."""
    xid = excuse_xid(gtrid, os.urandom(8))
    for name, url in urls:
        try:
            resource = resources.get(name, url)
            if not isinstance(resource.rm, SharingBranches):
                continue
            rm = resource.rm
            call_resource(resource, "start", lambda rm=rm, resource=resource: rm.start(xid, resource.rmid))  # type: ignore[misc]
            rm.end(xid, resource.rmid, TMSUCCESS)
            rm.prepare_kept(xid, resource.rmid)
        except (XaError, PipelineError) as error:
            logger.warning("can't record at %s that the failure was not caused by a message: %s", name, error)
        else:
            return
