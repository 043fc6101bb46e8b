"""What the bank works with: its accounts, its transfers, and the ways in which its nodes are configured.

A place is a database with accounts. A transfer is a message in the queue of orders. A direct one is carried out in one
transaction: both accounts, an entry for each, and a receipt. A posted one takes the amount from the first account and
sends it as a message to the queue of credits, from which another transaction, perhaps of another node, takes it to the
second account and sends the receipt. So money is in two databases and in a queue. The transfers from every second
account are a group, which has to be carried out in its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from random import Random

BROKER: Final = "broker"
EAST: Final = "east"
WEST: Final = "west"
PLACES: Final = (EAST, WEST)
ACCOUNTS: Final = 20
"""At each place: so few that transactions meet at one."""
OPENING: Final = 1000
"""What is on each account at first."""
TOTAL: Final = len(PLACES) * ACCOUNTS * OPENING
MOST: Final = 50
"""The largest amount of a transfer."""

Decides: TypeAlias = Literal["file", "sql", "database", "token"]
"""Where decisions are made: in a FileLog for each node; in one SqlLog for all nodes; in the database of EAST, which
all nodes share; in the token queues of the broker, which all nodes share."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How the bank's nodes work: `processes` of each node, `threads` for each of the two queues in a process, up to
    `batch` transfers in a transaction, and `prefetch` messages that are sent ahead, with `ahead` as docs/consumers.md
    has it."""

    decides: Decides
    nodes: int = 2
    processes: int = 1
    threads: int = 1
    batch: int = 1
    prefetch: int = 0

    def __str__(self) -> str:
        each = f"{self.nodes} node(s) of {self.processes} process(es) of {self.threads} thread(s)"
        return f"bank, {self.decides} decides, {each}, batches of {self.batch}, prefetch {self.prefetch}"

    @property
    def decider(self) -> str:
        """The resource that decides; empty where a log does."""
        return {"database": EAST, "token": BROKER}.get(self.decides, "")


@dataclass(frozen=True, slots=True)
class Account:
    """One account, by its place and its number there."""

    place: str
    number: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """An amount to be moved. Both accounts may be at one place, and are never the same."""

    number: int
    source: Account
    target: Account
    amount: int
    posted: bool

    @property
    def group(self) -> str:
        """The group whose transfers have an order; empty where it is in none."""
        return f"{self.source.place} {self.source.number}" if self.source.number % 2 else ""

    def body(self) -> dict[str, Any]:
        """The message that asks for it."""
        return {
            "number": self.number,
            "source": [self.source.place, self.source.number],
            "target": [self.target.place, self.target.number],
            "amount": self.amount,
            "posted": self.posted,
        }

    @classmethod
    def of(cls, body: dict[str, Any]) -> Transfer:
        """What such a message asks for."""
        (place, number), (other, there) = body["source"], body["target"]
        return cls(
            int(body["number"]),
            Account(str(place), int(number)),
            Account(str(other), int(there)),
            int(body["amount"]),
            bool(body["posted"]),
        )


def some_transfers(dice: Random, first: int, count: int) -> list[Transfer]:
    """So many, numbered from `first`."""
    accounts = [Account(place, number) for place in PLACES for number in range(ACCOUNTS)]
    made = []
    for number in range(first, first + count):
        source, target = dice.sample(accounts, 2)
        made.append(Transfer(number, source, target, dice.randint(1, MOST), posted=dice.random() < 0.4))
    return made
