"""Decision logs: where the decision of a global transaction becomes durable."""

from tm.log.decision import (
    Branch,
    Decision,
    DecisionLog,
    DecisionRefused,
    Heuristic,
    LogDamaged,
    LogError,
    LogFull,
    LogLocked,
    LogStopped,
)

__all__ = [
    "Branch",
    "Decision",
    "DecisionLog",
    "DecisionRefused",
    "Heuristic",
    "LogDamaged",
    "LogError",
    "LogFull",
    "LogLocked",
    "LogStopped",
]
