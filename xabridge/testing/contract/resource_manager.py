"""The test classes of the suite for a resource manager that is prepared: import all of them into a test module that has
a fixture `harness`, and pytest runs the suite."""

from __future__ import annotations

from .association import TestAssociation
from .asynchrony import TestAsynchrony
from .capacity import TestCapacity
from .completion import TestCompletion
from .failures import TestFailures
from .heuristics import TestHeuristics
from .holdings import TestHoldings
from .opening import TestOpening
from .outcome_notes import TestOutcomeNotes
from .recovery import TestRecovery
from .refusals import TestRefusals
from .registration import TestRegistration
from .threads import TestThreads

__all__ = [
    "TestAssociation",
    "TestAsynchrony",
    "TestCapacity",
    "TestCompletion",
    "TestFailures",
    "TestHeuristics",
    "TestHoldings",
    "TestOpening",
    "TestOutcomeNotes",
    "TestRecovery",
    "TestRefusals",
    "TestRegistration",
    "TestThreads",
]
