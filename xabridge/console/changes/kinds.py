"""The kinds of changes: what each is called, what it says before it is done, and what of it is lost for good.

The words are those of `xabridge broker ACTION --dry-run`, with what follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xabridge.cli.broker.changing import plan
from xabridge.cli.text import several

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Kind:
    """A change. `about` are its arguments that say about what, `asks` the ones that its preview asks for; `loses`:
    something is gone afterwards."""

    operation: str
    verb: str
    about: tuple[str, ...]
    asks: tuple[str, ...] = ()
    loses: bool = False

    @property
    def of_messages(self) -> bool:
        """Whether it goes message by message."""
        return self.operation in _WHERE


_WHERE: Final = {
    "move": "to {to}",
    "copy": "to {to}",
    "retry": "to where they came from",
    "purge": "for good",
}

KINDS: Final = {
    kind.operation: kind
    for kind in (
        Kind("move", "Move", ("queue",), ("to",)),
        Kind("copy", "Copy", ("queue",), ("to",)),
        Kind("retry", "Retry", ("queue",), ("to?",)),
        Kind("purge", "Purge", ("queue",), loses=True),
        Kind("pause-queue", "Pause", ("queue",)),
        Kind("resume-queue", "Resume", ("queue",)),
        Kind("delete-queue", "Delete", ("queue",), ("force",), loses=True),
        Kind("close-connection", "Close", ("connection",), loses=True),
        Kind("drop-branch", "Roll back", ("xid",), loses=True),
        Kind("remove-user", "Remove", ("user",), loses=True),
        Kind("remove-permissions", "Remove", ("user",), loses=True),
    )
}


def of_messages(
    operation: str, queue: str, found: Mapping[str, int], *, to: str = "", missing: int = 0, group: str = ""
) -> str:
    """The sentence about messages that are moved, copied, retried or purged."""
    where = _WHERE[operation].format(to=to or "the queue that you choose")
    if operation == "retry" and to:
        where += f", else to {to}"
    told = plan(operation, queue, where, found, missing)
    return f"{told}; only those {group}" if group else told


def of_queue(operation: str, queue: Mapping[str, Any]) -> list[str]:
    """What becomes of a queue, and of whom it concerns."""
    name, depth = queue["name"], several(queue["depth"], "message")
    consumers = several(queue["consumers"], "consumer")
    if operation == "pause-queue":
        return [
            f"pause {name}",
            f"{consumers} of it get nothing until it is resumed, also after a restart of the broker.",
            "What consumers and transactions hold already stays with them; the queue goes on taking messages.",
        ]
    if operation == "resume-queue":
        return [f"resume {name}", f"{depth} go to {consumers} again."]
    told = [f"delete {name}"]
    if queue["depth"] or queue["consumers"]:
        told.append(f"It has {depth} and {consumers}. The broker refuses this, unless the box below is ticked.")
    if queue["held"] or queue["pending"]:
        told.append(
            f"Transactions or prepared branches hold {several(queue['held'], 'message')} of it and post "
            f"{queue['pending']} to it. As long as they do, the broker refuses to delete it."
        )
    return told


def of_others(operation: str, about: str) -> list[str]:
    """What becomes of a connection, a branch or a user."""
    return {
        "close-connection": [
            f"close connection {about}",
            "What it held is free, as if the network had failed; prepared branches stay.",
            "A client that is built to connect again does so.",
        ],
        "drop-branch": [
            f"drop branch {about}, which is not prepared",
            "What it holds is free. Its transaction manager hears that it was rolled back.",
        ],
        "remove-user": [f"remove the user {about} and close this user's connections", "The permissions go as well."],
        "remove-permissions": [
            f"remove the permissions of {about}",
            "What was attached before stays attached; what is asked from then on is refused.",
        ],
    }[operation]
