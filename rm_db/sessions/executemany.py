"""Executemany: sends the rows of one `executemany` together.

psycopg waits for the socket and writes to it once for each row, so that client and server are woken for each of them.
Here GATHERED rows leave in one write. Nothing else differs: psycopg makes the commands, and reads the results, in the
same order, and an error is raised for the same row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable

    from psycopg.abc import Params, PQGen, Query

GATHERED: Final = 32
"""Rows that are written together. Their octets are in memory meanwhile."""


class Executemany:
    """A mixin for a cursor of psycopg's, before psycopg's class."""

    _conn: Any

    def _executemany_gen_pipeline(self, query: Query, params_seq: Iterable[Params], returning: bool) -> PQGen[None]:
        pipeline = self._conn._pipeline  # noqa: SLF001 — psycopg has no other way
        communicate = pipeline._communicate_gen  # noqa: SLF001
        commands: deque[Callable[[], None]] = pipeline.command_queue

        def gather() -> PQGen[None]:
            if len(commands) >= GATHERED:
                _buffer(commands)
                yield from communicate()

        pipeline._communicate_gen = gather  # noqa: SLF001 — psycopg calls it after each row
        try:
            rows: PQGen[None] = super()._executemany_gen_pipeline(query, params_seq, returning)  # type: ignore[misc]  # psycopg's
            yield from rows
        finally:
            del pipeline._communicate_gen  # noqa: SLF001 — the class has it
        _buffer(commands)


def _buffer(commands: deque[Callable[[], None]]) -> None:
    """Hands the commands to libpq, which keeps what the socket does not take."""
    while commands:
        commands.popleft()()
