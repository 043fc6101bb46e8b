"""The reference resource manager: in memory, strict about the tables, with scripted outcomes. For tests, simulations
and benchmarks of the transaction manager; nothing of it is durable."""

from xabridge.testing.reference.decider import DecidingStore, ReferenceDecider, ReferenceDeciderFactory
from xabridge.testing.reference.driver import NotingResource, ReferenceFactory, ReferenceResource, ReferenceSession
from xabridge.testing.reference.script import FaultScript, NetworkFault, PlannedFault
from xabridge.testing.reference.server import KeyLocked
from xabridge.testing.reference.store import ReferenceStore

__all__ = [
    "DecidingStore",
    "FaultScript",
    "KeyLocked",
    "NetworkFault",
    "NotingResource",
    "PlannedFault",
    "ReferenceDecider",
    "ReferenceDeciderFactory",
    "ReferenceFactory",
    "ReferenceResource",
    "ReferenceSession",
    "ReferenceStore",
]
