"""FAULTS: what is broken on a game day, one after the other, and the steps of the guides that repair it.

The steps are commands as a person types them in the site's folder: words for its supervisor (`start`, `stop`,
`restart`), or a line for the shell, with the variables of `GameSite.environment`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rm_amqp import Message
from xa.telemetry.conditions import (
    AWAY,
    BRANCH_IN_DOUBT,
    CONSUMER_TROUBLED,
    DEAD_LETTERS,
    RESOURCE_UNREACHABLE,
    STORE_FULL,
    Condition,
)
from xabridge.demo.shop.orders import ORDERS
from xabridge.demo.shop.shop import BROKER

if TYPE_CHECKING:
    from collections.abc import Callable

    from xabridge.demo.game_day.site import GameSite

NODE: Final = "node-1"
TAKEN: Final = "core.4711"
"""The file that fills the disk."""
POISON: Final = {"number": 4711, "customer": "Ada"}
"""An order without an amount."""
PAGE: Final = 4096
"""Octets of a page of the store."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `breaks` breaks the site, places so many orders, and returns what was done, in words; `stands_for` is
    what that is in real life. `conditions` are those by which the site shows it: one of them comes. `look` is the
    command that shows more; `steps` repair it, as the section of the first condition in docs/recover.md says."""

    name: str
    title: str
    breaks: Callable[[GameSite, int], str]
    stands_for: str
    conditions: tuple[Condition, ...]
    look: str
    steps: tuple[str, ...]


def _lose_node(site: GameSite, orders: int) -> str:
    site.place(orders)
    site.lose_node()
    return "node-2 is gone (SIGKILL) when it had decided two transactions, and carried out one of them at one resource"


def _fill_disk(site: GameSite, orders: int) -> str:
    site.stop(NODE)
    site.place(orders)
    site.fill_disk(TAKEN)
    site.start(NODE)
    why = site.place_refused(orders)
    return f"disk/{TAKEN} takes all the space beside the store, and orders wait; who places more is refused: {why}"


def _send_poison(site: GameSite, orders: int) -> str:
    site.send(ORDERS, Message(POISON, id="order-4711"))
    site.place(orders)
    return "a sender has put an order without an amount into the queue, before others"


def _stop_broker(site: GameSite, orders: int) -> str:
    site.place(orders)
    site.stop(BROKER)
    return "the broker has stopped, while orders are handled"


def _rotate(site: GameSite, orders: int) -> str:
    site.rotate()
    site.place(orders)
    return (
        "the password of the user shop was changed at the broker, which has closed the connections; worker.new.env has "
        "the new one, and node-1 still has the old one"
    )


def _damage(site: GameSite, orders: int) -> str:
    site.stop(NODE)
    site.place(orders)
    site.back_up()
    site.stop(BROKER)
    _overwrite(site)
    return "node-1 was stopped, orders wait, a back-up was made; then pages of the broker's store were overwritten"


def _overwrite(site: GameSite) -> None:
    """Overwrites every page of the store but the first one."""
    file = site.disk / "store.db"
    octets = bytearray(file.read_bytes())
    for at in range(PAGE, len(octets), PAGE):
        octets[at : at + 64] = b"\xff" * 64
    file.write_bytes(octets)


FAULTS: Final = (
    Fault(
        "lost-node",
        "a node is lost in phase two",
        _lose_node,
        "a machine that does not come back, and whose log is on a volume that another machine can mount",
        (BRANCH_IN_DOUBT,),
        "xabridge recover list --config node-1.toml",
        ("xabridge recover run --config node-2.toml",),
    ),
    Fault(
        "full-disk",
        "a disk is full",
        _fill_disk,
        "a volume that is full: here it is a file system of 16 MB in memory",
        (STORE_FULL,),
        "xabridge health $BROKER",
        (f"rm disk/{TAKEN}",),
    ),
    Fault(
        "poison-message",
        "a poison message",
        _send_poison,
        "a message that no handler can handle",
        (DEAD_LETTERS,),
        "xabridge broker dead",
        ("xabridge broker purge orders.dead --yes",),
    ),
    Fault(
        "broker-stopped",
        "the broker has stopped",
        _stop_broker,
        "a process that has ended, and that no supervisor starts again",
        (AWAY,),
        "xabridge health $BROKER",
        ("start broker",),
    ),
    Fault(
        "wrong-password",
        "a wrong password after rotation",
        _rotate,
        "a rotation in which the old password was not kept for a time, and that left out a node",
        (RESOURCE_UNREACHABLE, CONSUMER_TROUBLED),
        "xabridge health $NODE_1",
        ("xabridge doctor --config node-1.toml", "cp worker.new.env worker.env", "restart node-1"),
    ),
    Fault(
        "damaged-store",
        "a damaged store, and a back-up",
        _damage,
        "a disk that fails. The back-up is of a moment at rest: what comes after a back-up is not in it",
        (AWAY,),
        "start broker",
        (
            "xabridge check --config node-1.toml --store broker=$BACKUP",
            "rm -f disk/store.db disk/store.db-wal disk/store.db-shm",
            "cp backup/broker.db disk/store.db",
            "start broker",
            "start node-1",
        ),
    ),
)
