"""RecoveryMessages: the lines that recovery passes write with `logging`: what they did, and what is wrong.

What lasts, an outage say, is written when it begins, and then only now and then. `Report` has all of it at any time."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from tm.outcome import named
from tm.recovery.report import Action
from tm.throttle import WarningThrottle
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.log import Branch
    from tm.recovery.report import Finding, Report

logger = logging.getLogger("xabridge.tm.recovery")

LEVELS: Final = {
    Action.COMMITTED: logging.INFO,
    Action.ROLLED_BACK: logging.INFO,
    Action.FORGOTTEN: logging.WARNING,
    Action.HEURISTIC: logging.ERROR,
    Action.PENDING: logging.WARNING,
    Action.STRANDED: logging.WARNING,
    Action.LEFT_ALONE: logging.DEBUG,
    Action.GONE: logging.DEBUG,
    Action.NOT_THERE: logging.INFO,
}
LASTING: Final = Action.PENDING, Action.STRANDED, Action.HEURISTIC
"""A problem that every pass finds again, until it is over."""


class RecoveryMessages:
    """Called by the passes of one manager, one at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._throttle = WarningThrottle(clock)
        self._down: frozenset[str] = frozenset()
        self._lasting: dict[Branch, Action] = {}
        """The problems that were logged, branch by branch, and still exist."""

    def passed(self, report: Report) -> None:
        """A pass has come to this."""
        for name, why in report.unreachable.items():
            lasted = self._throttle.due(name)
            if lasted is not None:
                logger.warning("recovery: %s can't be reached%s: %s", name, lasted, why, extra=about(resource=name))
        for name in self._down - report.unreachable.keys():
            after = self._throttle.over(name)
            logger.info("recovery: %s can be reached again, after %s", name, after, extra=about(resource=name))
        self._down = frozenset(report.unreachable)
        for finding in report.findings:
            if finding.action not in LASTING or self._lasting.get(finding.branch) is not finding.action:
                _log_finding(finding)
        self._remind(report)

    def _remind(self, report: Report) -> None:
        """Logs from time to time how many of the logged problems still exist."""
        before = self._lasting
        self._lasting = {branch: action for branch, action in before.items() if branch.resource in report.unreachable}
        self._lasting |= {one.branch: one.action for one in report.findings if one.action in LASTING}
        counts = Counter(action for branch, action in self._lasting.items() if before.get(branch) is action)

        for action in LASTING:
            if action not in self._lasting.values():
                self._throttle.over(action)
                continue
            lasted = self._throttle.due(action)
            if lasted and counts[action]:
                one = counts[action] == 1
                logger.log(
                    LEVELS[action],
                    "recovery: %d %s%s: %s; `xabridge recover list` shows %s",
                    counts[action], "branch" if one else "branches", lasted, action.value, "it" if one else "them",
                )  # fmt: skip

    def unreadable(self, decider: str, raised: Exception) -> None:
        """A decider could not be asked for its decisions."""
        lasted = self._throttle.due(("decisions", decider))
        if lasted is not None:
            extra = about(resource=decider)
            logger.warning("recovery: the decisions in %s can't be read%s: %s", decider, lasted, raised, extra=extra)

    def readable(self, decider: str) -> None:
        """It could."""
        self._throttle.over(("decisions", decider))

    def log_unreadable(self, error: Exception) -> None:
        """There was no pass: the log can't be read."""
        lasted = self._throttle.due("log")
        if lasted is not None:
            logger.error("recovery can't read the log%s: %s", lasted, error)

    def failed(self, error: Exception) -> None:
        """A pass was broken off by this."""
        if self._throttle.due(type(error).__name__) is not None:
            logger.error("a recovery pass failed with an unexpected error; another pass will follow", exc_info=error)


def _log_finding(finding: Finding) -> None:
    branch = finding.branch
    logger.log(
        LEVELS[finding.action],
        "recovery: %s (xid %s) on %s: %s: %s",
        named(branch.xid.gtrid), branch.xid, branch.resource, finding.action.value, finding.why,
        extra=about(transaction=named(branch.xid.gtrid), branch=branch.xid, resource=branch.resource),
    )  # fmt: skip
