"""Recovery: finishes the transactions that a crash, an outage or an interruption has left in doubt.

`recovery_pass` is the algorithm of one pass, without I/O. `service` runs it at the start of a manager, periodically,
and on demand. `ownership` is the rule that says which transactions a pass may touch at all.
"""

from tm.recovery.report import Action, Finding, Report

__all__ = ["Action", "Finding", "Report"]
