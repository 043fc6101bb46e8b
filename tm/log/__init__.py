"""Decision logs: where the decision of a global transaction becomes durable.

SqlLog is in `tm.log.sql`, which loads SQLAlchemy.
"""

from tm.log.contract import (
    Branch,
    Decision,
    DecisionLog,
    DecisionRefused,
    Heuristic,
    LogDamaged,
    LogError,
    LogFull,
    LogLocked,
    LogMissing,
    LogOfOtherVersion,
    LogStopped,
)
from tm.log.file_log import FileLog
from tm.log.inspection import LogImage, read_log

__all__ = [
    "Branch",
    "Decision",
    "DecisionLog",
    "DecisionRefused",
    "FileLog",
    "Heuristic",
    "LogDamaged",
    "LogError",
    "LogFull",
    "LogImage",
    "LogLocked",
    "LogMissing",
    "LogOfOtherVersion",
    "LogStopped",
    "read_log",
]
