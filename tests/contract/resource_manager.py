"""The suite for a resource manager: `from tests.contract.resource_manager import *` in a test module that has a
fixture `harness` runs all of it."""

from __future__ import annotations

from tests.contract.association import TestAssociation
from tests.contract.asynchrony import TestAsynchrony
from tests.contract.capacity import TestCapacity
from tests.contract.completion import TestCompletion
from tests.contract.failures import TestFailures
from tests.contract.heuristics import TestHeuristics
from tests.contract.holdings import TestHoldings
from tests.contract.opening import TestOpening
from tests.contract.recovery import TestRecovery
from tests.contract.refusals import TestRefusals
from tests.contract.registration import TestRegistration
from tests.contract.threads import TestThreads

__all__ = [
    "TestAssociation",
    "TestAsynchrony",
    "TestCapacity",
    "TestCompletion",
    "TestFailures",
    "TestHeuristics",
    "TestHoldings",
    "TestOpening",
    "TestRecovery",
    "TestRefusals",
    "TestRegistration",
    "TestThreads",
]
