"""RunningNode: the place that a running transaction manager is. It has the log open and recovers by itself, so that
what is done here by hand is done beside both.

- Transactions under way are left out: their own completion takes care of them. They are read after the scan and before
  the decisions, as in a recovery pass, so that a branch never seems to be undecided because its transaction has just
  been completed.
- No recovery pass runs while something is done by hand.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from tm.log import LogError, LogImage
from xabridge.cli.site import Scanned, Scanner, Seen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tm.log import DecisionLog
    from tm.manager import TransactionManager
    from tm.recovery.blocking import PassProgress
    from tm.recovery.service import RecoveryService
    from tm.resources import Resource
    from tm.transaction import Transaction
    from xabridge.cli.progress import Progress


class RunningNode:
    """The `Place` of `manager`."""

    def __init__(self, manager: TransactionManager[Transaction], progress: Progress) -> None:
        self._manager = manager
        self._scanner = Scanner(manager.node, manager.resources, progress, now=False)

    @property
    def node(self) -> str:
        return self._manager.node

    @property
    def resources(self) -> Mapping[str, Resource]:
        return self._manager.resources

    @property
    def has_the_log(self) -> bool:
        return True

    def look(self) -> Seen:
        live: set[bytes] = set()

        def read_log() -> LogImage | LogError | None:
            live.update(one.gtrid for one in self._manager.live)
            return self.read_log()

        seen = self._scanner.look(read_log, self._manager.recovery.ownership.own)
        log = seen.log
        if isinstance(log, LogImage):
            log = replace(log, decisions=tuple(one for one in log.decisions if one.gtrid not in live))
        return replace(
            seen,
            log=log,
            scanned={
                name: Scanned(tuple(one for one in scanned.branches if one.xid.gtrid not in live), scanned.tells)
                for name, scanned in seen.scanned.items()
            },
            decided={
                name: MappingProxyType({gtrid: one for gtrid, one in decided.items() if gtrid not in live})
                for name, decided in seen.decided.items()
            },
        )

    def read_log(self) -> LogImage | LogError | None:
        log = self._manager.log
        if log is None:
            return None
        try:
            return LogImage(log.node, log.log_id, 0, log.incarnations, tuple(log.decisions()), tuple(log.heuristics()))
        except LogError as error:
            return error

    @contextmanager
    def holding_the_log(self) -> Iterator[DecisionLog | None]:
        with self._manager.recovery.paused():
            yield self._manager.log

    def recovery(self, log: DecisionLog | None, progress: PassProgress | None = None) -> RecoveryService:
        del log, progress  # the manager's has its own
        return self._manager.recovery

    def close(self) -> None:
        """Ends the threads. The resources are the manager's."""
        self._scanner.close()
