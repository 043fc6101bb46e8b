"""A token is the message in which a broker with local transactions keeps decisions. This module, without I/O, reads and
writes its content.

The founding queue, `token_queue` of the open string, holds founding messages, which are read and never taken. Each
slot has a queue of its own, `<token_queue>.<slot>`, that holds one message, its token. The slot of a transaction is
crc32(gtrid) modulo the number of slots. There is one more token than there are slots, the lease token. It holds the
leases of the transaction managers that are at work, apart from the decisions so that these don't keep them waiting, and
it says which founding counts (`rm_amqp.decider.election`). Bodies are text, so that an operator can read them: JSON
objects with

    founding   version, founder (16 hexadecimal digits, random: the decider's id), slots
    token      version, founder, slot, generation, epoch, floor,
               decided: [[gtrid, record], …] in the order of the decisions,
               fenced: [[gtrid, epoch], …] in the order of the epochs,
               leases: [[node, incarnation, process, until, floor, ceiling, noted], …], `until` and `noted` in
               milliseconds since 1970, floor and ceiling as in `xa.deciding_resource.NotedIncarnation`;
               octets as hexadecimal digits

Octets are one of these if and only if all of these fields are there, and have their types. Another version is refused
before anything else is read. A token is only ever replaced as a whole: one local transaction retires it and sends the
next generation.

`decided` has every decision of the slot that has not ended, so that a slot is free for the next transaction at once.
The lease token keeps leases that have ended, without their processes, until nothing of their transactions is left
anywhere: recovery presumes nothing about an incarnation that is not there.

A fence says that a transaction can't be decided any more. The latest fences are kept with their gtrids. Those that were
made up to the epoch `floor` are not; therefore a transaction is also refused if it is not known to have begun later.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from xa import Owner
from xa.format_version import version_refusal
from xa.gtrid import OVER

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

VERSION: Final = 3
ID_SIZE: Final = 8
MAX_SLOTS: Final = 64
MAX_FENCES: Final = 64
"""Fences that a token keeps by their gtrids."""
MAX_OCTETS: Final = 1 << 20
"""Of a token's body: beyond it the slot takes no more decisions until some have ended."""
MAX_LEASES: Final = 1000
"""Processes that can be at work over one place at a time."""
KEPT_LEASES: Final = 500
"""Leases that have ended and are kept, the latest ones."""

_NUMBERS: Final = ("slot", "generation", "epoch", "floor")


class WrongTokenError(ValueError):
    """The octets are no founding message and no token."""


class OtherVersionError(WrongTokenError):
    """Another version of xabridge has written them."""


class TooManyLeasesError(Exception):
    """The lease token holds as many leases as it may, and none has run out. Nothing was changed."""


@dataclass(frozen=True, slots=True, order=True)
class FoundingMessage:
    """The body of the founding message."""

    founder: bytes
    slots: int

    def encode(self) -> str:
        """The body of the message."""
        return json.dumps({"version": VERSION, "founder": self.founder.hex(), "slots": self.slots})

    @classmethod
    def decode(cls, body: object) -> FoundingMessage:
        """The contents of a body; WrongTokenError."""
        fields = _object(body)
        founding = cls(_hex(fields, "founder"), _number(fields, "slots"))
        if len(founding.founder) != ID_SIZE or not 1 <= founding.slots <= MAX_SLOTS:
            raise WrongTokenError(f"founder {founding.founder.hex()} with {founding.slots} slots")
        return founding

    def slot_of(self, gtrid: bytes) -> int:
        """The slot whose token decides this transaction."""
        return zlib.crc32(gtrid) % self.slots

    @property
    def lease_slot(self) -> int:
        """The slot of the lease token, which decides nothing."""
        return self.slots

    def first_tokens(self) -> list[Token]:
        """One for each slot, and the lease token, all unused."""
        return [Token(self.founder, slot) for slot in range(self.slots + 1)]


class TokenAnswer(Enum):
    """A token's answer about a transaction."""

    DECIDED = "decided"
    FENCED = "can't be decided any more"
    OUTDATED = "began before the fences that the token still has by name"
    OPEN = "undecided"


@dataclass(frozen=True, slots=True)
class Lease:
    """Until when somebody is at work, and what of its transactions there may be, as it noted when it was last at work.
    The times are in milliseconds since 1970, by the clock of who wrote it."""

    owner: Owner
    until_ms: int
    floor: int = 0
    ceiling: int = 0
    noted_ms: int = 0

    @property
    def ended(self) -> Lease:
        """The same when it has run out: what its process was is of no interest any more."""
        return replace(self, owner=replace(self.owner, process=""), until_ms=0)


@dataclass(frozen=True, slots=True)
class Token:
    """One slot's token. `generation` 0 was never used: it holds nothing."""

    founder: bytes
    slot: int
    generation: int = 0
    epoch: int = 0
    """How many fences were made."""
    floor: int = 0
    decided: tuple[tuple[bytes, bytes], ...] = ()
    fenced: tuple[tuple[bytes, int], ...] = ()
    leases: tuple[Lease, ...] = ()

    @property
    def used(self) -> bool:
        """Whether it was replaced, which is not done before the founding is elected."""
        return self.generation > 0

    # -- what it says
    def check(self, founding: FoundingMessage | None, slot: int) -> None:
        """WrongTokenError where it has no place in this slot: one of another founding that somebody has used. None:
        which founding counts is not known yet."""
        if founding is not None and self.founder != founding.founder and self.used:
            raise WrongTokenError(f"decider {self.founder.hex()} uses it, and this is {founding.founder.hex()}")
        if self.slot != slot:
            raise WrongTokenError(f"it belongs to slot {self.slot}")

    def record_of(self, gtrid: bytes) -> bytes | None:
        """The record of a decided transaction."""
        return dict(self.decided).get(gtrid)

    def word_on(self, gtrid: bytes, known: int) -> TokenAnswer:
        """What becomes of a transaction that began when the slot was at least at the epoch `known`."""
        if self.record_of(gtrid) is not None:
            return TokenAnswer.DECIDED
        if gtrid in dict(self.fenced):
            return TokenAnswer.FENCED
        return TokenAnswer.OUTDATED if known < self.floor else TokenAnswer.OPEN

    # -- the next generation
    def deciding(self, gtrid: bytes, record: bytes, ended: Collection[bytes]) -> Token:
        """With one more decision, and without those that have ended."""
        kept = self.ending(ended)
        return replace(kept, decided=(*kept.decided, (gtrid, record)))

    def fencing(self, gtrid: bytes) -> Token:
        """With one more fence; the oldest goes where there are too many."""
        epoch, floor = self.epoch + 1, self.floor
        fenced = (*self.fenced, (gtrid, epoch))
        if len(fenced) > MAX_FENCES:
            floor, fenced = fenced[0][1], fenced[1:]
        return replace(self.renewed(), epoch=epoch, floor=floor, fenced=fenced)

    def ending(self, ended: Collection[bytes]) -> Token:
        """Without these decisions and fences."""
        return replace(
            self.renewed(),
            decided=tuple(pair for pair in self.decided if pair[0] not in ended),
            fenced=tuple(pair for pair in self.fenced if pair[0] not in ended),
        )

    def holding(self, lease: Lease, now_ms: int) -> Token:
        """With this lease in the place of the owner's former one; those that have run out come first.
        TooManyLeasesError."""
        whose = lease.owner.node, lease.owner.incarnation
        others = [one for one in self.leases if (one.owner.node, one.owner.incarnation) != whose]
        running = [one for one in others if one.until_ms > now_ms]
        ended = [one.ended for one in others if one.until_ms <= now_ms]
        if lease.until_ms > now_ms:
            if len(running) >= MAX_LEASES:
                raise TooManyLeasesError(
                    f"{len(running)} processes are at work over these tokens, which is as many as there may be; "
                    "end some, or give others a token_queue of their own"
                )
            running.append(lease)
        elif len(others) < len(self.leases):  # one that was never there has begun nothing
            ended.append(lease.ended)

        left = sorted((one for one in ended if one.floor < OVER), key=lambda one: one.noted_ms)
        return replace(self.renewed(), leases=(*left[-KEPT_LEASES:], *running))

    def running(self, now_ms: int) -> Sequence[Lease]:
        """The leases that have not run out."""
        return [lease for lease in self.leases if lease.until_ms > now_ms]

    def renewed(self) -> Token:
        """The same, in a message that was not held yet."""
        return replace(self, generation=self.generation + 1)

    # -- octets
    def encode(self) -> str:
        """The body of the message."""
        fields = {
            "version": VERSION,
            "founder": self.founder.hex(),
            "slot": self.slot,
            "generation": self.generation,
            "epoch": self.epoch,
            "floor": self.floor,
            "decided": [[gtrid.hex(), record.hex()] for gtrid, record in self.decided],
            "fenced": [[gtrid.hex(), epoch] for gtrid, epoch in self.fenced],
            "leases": [
                [
                    lease.owner.node,
                    lease.owner.incarnation.hex(),
                    lease.owner.process,
                    lease.until_ms,
                    lease.floor,
                    lease.ceiling,
                    lease.noted_ms,
                ]
                for lease in self.leases
            ],
        }

        return json.dumps(fields)

    @classmethod
    def decode(cls, body: object) -> Token:
        """The contents of a body; WrongTokenError."""
        fields = _object(body)
        slot, generation, epoch, floor = (_number(fields, name) for name in _NUMBERS)
        try:
            decided = tuple((bytes.fromhex(gtrid), bytes.fromhex(record)) for gtrid, record in fields["decided"])
            fenced = tuple((bytes.fromhex(gtrid), _whole(epoch)) for gtrid, epoch in fields["fenced"])
            leases = tuple(_lease(*lease) for lease in fields["leases"])
        except (KeyError, TypeError, ValueError) as error:
            raise WrongTokenError(f"its content can't be read: {error}") from None
        founder = _hex(fields, "founder")
        return cls(founder, slot, generation, epoch, floor, decided, fenced, leases)


def _lease(node: object, incarnation: object, process: object, *numbers: object) -> Lease:
    if not isinstance(node, str) or not isinstance(incarnation, str) or not isinstance(process, str):
        raise TypeError(f"the lease of {node!r} is no lease")
    until_ms, floor, ceiling, noted_ms = map(_whole, numbers)
    return Lease(Owner(node, bytes.fromhex(incarnation), process), until_ms, floor, ceiling, noted_ms)


def _whole(number: object) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is no epoch, no sequence and no time")
    return number


def _object(body: object) -> dict[str, Any]:
    if not isinstance(body, str):
        raise WrongTokenError(f"its body is {type(body).__name__}, not text")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WrongTokenError(f"its body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise WrongTokenError(f"its body is a JSON {type(fields).__name__}, not an object")
    version = fields.get("version")
    if type(version) is not int:
        raise WrongTokenError(f"its version is {version!r}")
    refusal = version_refusal("the tokens", version, VERSION)
    if refusal is not None:
        raise OtherVersionError(refusal)
    return fields


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise WrongTokenError(f"{name} is {value!r}")
    return value


def _hex(fields: dict[str, Any], name: str) -> bytes:
    try:
        return bytes.fromhex(fields[name])
    except (KeyError, TypeError, ValueError):
        raise WrongTokenError(f"{name} is {fields.get(name)!r}") from None
