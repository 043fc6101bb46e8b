"""The reference resource manager: in memory, strict about the tables, with scripted outcomes. For tests, simulations
and benchmarks of the transaction manager; nothing of it is durable."""

from xa.reference.decider import DecidingStore, ReferenceDecider, ReferenceDeciderFactory
from xa.reference.resource import ReferenceFactory, ReferenceResource
from xa.reference.script import Fate, Script, Step
from xa.reference.server import KeyLocked
from xa.reference.session import ReferenceSession
from xa.reference.store import ReferenceStore

__all__ = [
    "DecidingStore",
    "Fate",
    "KeyLocked",
    "ReferenceDecider",
    "ReferenceDeciderFactory",
    "ReferenceFactory",
    "ReferenceResource",
    "ReferenceSession",
    "ReferenceStore",
    "Script",
    "Step",
]
