"""Readiness: whether a broker can do its work now, which is to say: whether its store takes changes.

Where nothing was written a moment ago, the store is given a record to write, which has to become durable within
WRITE_S. It takes no space, so a store without space is ready as long as it takes what frees some: were clients kept
away from it then, no one could consume, and it would stay full.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from dtx.store.contract import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.store.contract import NotStored

FRESH_S: Final = 10.0
"""A success holds for so long: a probe per second is no force per second."""
WRITE_S: Final = 3.0
PROBE: Final = "probe"
"""The kind of the record that is written."""
PROBE_NUMBER: Final = 0
"""Its number, which is never given to anything else."""


class Readiness:
    """Of a resource over a store. `flush` has written what was submitted."""

    def __init__(self, resource: TransactionalResource, flush: Callable[[], None]) -> None:
        self._resource = resource
        self._flush = flush
        self._good_until = 0.0
        self._writing: asyncio.Future[NotStored | None] | None = None

    async def trouble(self) -> str:
        """What keeps the broker from its work; empty: nothing does."""
        loop = asyncio.get_running_loop()
        if self._resource.failed:
            return "the store stopped"
        if loop.time() < self._good_until:
            return ""
        if self._writing is None:
            self._writing = self._write(loop)

        try:
            error = await asyncio.wait_for(asyncio.shield(self._writing), WRITE_S)
        except TimeoutError:
            return (
                "the store stopped" if self._resource.failed else f"the store did not force a change in {WRITE_S:g} s"
            )
        self._writing = None
        if error is not None:
            return "the store takes nothing now"
        self._good_until = loop.time() + FRESH_S
        return ""

    def _write(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[NotStored | None]:
        written: asyncio.Future[NotStored | None] = loop.create_future()
        batch = Batch()
        batch.record(PROBE_NUMBER, PROBE, "")

        def done(error: NotStored | None) -> None:
            if not written.done():
                written.set_result(error)

        self._resource.submit(batch, done)
        self._flush()
        return written
