"""Sole connections: a container that has one connection at most, if that is what one of its connections asks for.

This is OASIS' "AMQP Enforcing Connection Uniqueness", 1.0. An open with the desired capability SOLE_CONNECTION names
two policies in its properties:

- enforcement: the connection that comes later is refused (0, the default), or the earlier ones are closed (1);
- detection: all connections of the container count (0, strong, the default), or only those that ask for it as well
  (1, weak).

A container is known by its user and its container-id, so that no user can keep another one away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.amqp.performatives import Error
from dtx.amqp.values import Symbol, Uint

if TYPE_CHECKING:
    from dtx.amqp.performatives import Open
    from dtx.amqp.values import Map

SOLE_CONNECTION: Final = "sole-connection-for-container"
ENFORCEMENT: Final = Symbol("sole-connection-enforcement-policy")
DETECTION: Final = Symbol("sole-connection-detection-policy")
_POLICIES: Final = frozenset({0, 1})

REFUSED: Final = Error(
    Condition.INVALID_FIELD,
    "another connection has this container-id, and one of the two is to be its only one",
    {Symbol("invalid-field"): Symbol("container-id")},
)
REFUSED_PROPERTIES: Final[Map] = {Symbol("amqp:connection-establishment-failed"): True}
"""Properties of an open that only a close follows."""
REPLACED: Final = Error(
    Condition.RESOURCE_LOCKED,
    "a later connection with this container-id is to be its only one",
    {Symbol("sole-connection-enforcement"): True},
)


@dataclass(frozen=True, slots=True)
class SoleConnection:
    """What an open asks for: whether earlier connections are closed, and whether only those count that ask as well."""

    closes_existing: bool
    weak: bool

    @property
    def properties(self) -> Map:
        """The properties of our open that say what is in force."""
        return {DETECTION: Uint(int(self.weak)), ENFORCEMENT: Uint(int(self.closes_existing))}


def asked_by(remote: Open) -> SoleConnection | None:
    """What an open asks for, None where it does not. ValueError for a policy that is none."""
    if SOLE_CONNECTION not in remote.desired_capabilities:
        return None
    properties = remote.properties or {}
    enforcement, detection = properties.get(ENFORCEMENT, Uint(0)), properties.get(DETECTION, Uint(0))
    for name, policy in ((ENFORCEMENT, enforcement), (DETECTION, detection)):
        if type(policy) is not Uint or int(policy) not in _POLICIES:
            raise ValueError(f"{name} is the uint 0 or 1")
    return SoleConnection(enforcement == 1, detection == 1)


def conflicts(comes: SoleConnection | None, exists: SoleConnection | None) -> bool:
    """Whether two connections of one container can't both be there."""
    if comes is None:
        return exists is not None and not exists.weak
    return exists is not None or not comes.weak


def closes_existing(comes: SoleConnection | None, exists: SoleConnection | None) -> bool:
    """Which of two that conflict goes: the one that exists, or else the one that comes."""
    policy = comes if comes is not None else exists
    return policy is not None and policy.closes_existing
