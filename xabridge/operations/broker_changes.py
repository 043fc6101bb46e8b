"""Changes at a broker that `xabridge broker` and the console make: what each says before it is done, and whether
something is lost by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xabridge.text import age, several

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Kind:
    """A change: the operation that the broker is asked for, the verb on the console's button, and the sentence that
    says what is done. `about` are the arguments that say to what, `asks` the ones that the console's preview asks for;
    `loses`: something is gone afterwards."""

    operation: str
    verb: str
    sentence: str
    about: tuple[str, ...]
    asks: tuple[str, ...] = ()
    loses: bool = False

    @property
    def of_messages(self) -> bool:
        """Whether it goes message by message."""
        return self.operation in _WHERE

    def said(self, **about: object) -> str:
        """What is done to this."""
        return self.sentence.format(**about)


OTHERS: Final = "others"
"""The id of the group of dead letters that the broker counts together, because they are of too many kinds."""
HELD: Final = "held by a consumer or a transaction"
"""Why the broker leaves a message with which somebody else works."""
NOTHING_SAID: Final = "nothing says why"
"""Of a dead letter whose sender has noted nothing."""
_WHERE: Final = {
    "move": "to {to}",
    "copy": "to {to}",
    "retry": "to where they came from",
    "purge": "for good",
}

KINDS: Final = {
    kind.operation: kind
    for kind in (
        Kind("move", "Move", "", ("queue",), ("to",)),
        Kind("copy", "Copy", "", ("queue",), ("to",)),
        Kind("retry", "Retry", "", ("queue",), ("to?",)),
        Kind("purge", "Purge", "", ("queue",), loses=True),
        Kind("pause-queue", "Pause", "pause {queue}", ("queue",)),
        Kind("resume-queue", "Resume", "resume {queue}", ("queue",)),
        Kind("delete-queue", "Delete", "delete {queue}", ("queue",), ("force",), loses=True),
        Kind("close-connection", "Close", "close connection {connection}", ("connection",), loses=True),
        Kind("drop-branch", "Roll back", "drop branch {xid}, which is not prepared", ("xid",), loses=True),
        Kind(
            "remove-user", "Remove", "remove the user {user} and close this user's connections", ("user",), loses=True
        ),
        Kind(
            "revoke-old-password",
            "Revoke",
            "end the old password of {user}, and close the connections that have signed in with it",
            ("user",),
            loses=True,
        ),
        Kind("remove-permissions", "Remove", "remove the permissions of {user}", ("user",), loses=True),
    )
}


def of_messages(operation: str, queue: str, found: Mapping[str, int], *, to: str = "", missing: int = 0) -> str:
    """The sentence about messages that are moved, copied, retried or purged."""
    where = _WHERE[operation].format(to=to or "the queue that you choose")
    if operation == "retry" and to:
        where += f", else to {to}"
    return _counted(operation, queue, where, found, missing)


def posted_words(queue: Mapping[str, Any]) -> list[str]:
    """What is posted to a queue, and is not in it yet."""
    prepared, pending = queue["prepared"], queue["pending"]
    words = [f"{several(prepared, 'message')} prepared, in it when committed"] if prepared else []
    return words + (
        [f"{several(pending - prepared, 'message')} of transactions that are open"] if pending > prepared else []
    )


def branch_word(queue: Mapping[str, Any], place: int) -> str:
    """What a branch is called that stands at this place among those that hold messages of a queue: the ones that are
    open come first."""
    return "open branch" if place < queue["open-branches"] else "prepared branch"


def why_dead(letter: Mapping[str, Any]) -> list[str]:
    """Why a message is a dead letter, or those of a group are: what it has failed with, where, and what the broker
    says of it. Not escaped."""
    if letter.get("id") == OTHERS:
        return ["for other reasons, none with more letters than another group of this queue"]
    said = [letter["error"]] if letter["error"] else []
    said += [f"at {letter['place']}"] if letter["place"] else []
    came = f"from {letter['from']}" if letter["from"] else ""
    if came or letter["why"]:
        said.append(f"{came}: {letter['why']}" if came and letter["why"] else came or letter["why"])
    return said if letter["error"] or letter["why"] else [NOTHING_SAID, *said]


def of_group(operation: str, group: Mapping[str, Any], *, to: str = "") -> str:
    """The sentence about the dead letters that a group has now."""
    what = of_messages(operation, group["queue"], {"available": int(group["letters"])}, to=to)
    return f"{what}: {', '.join(why_dead(group))} (what is held, or comes later, stays)"


def _counted(operation: str, queue: str, where: str, found: Mapping[str, int], missing: int) -> str:
    """`found`: how many of the messages are available, and how many are held; `missing`: how many of the ids are not
    there."""
    free, held = found.get("available", 0), found.get("held", 0)
    what = f"{operation} {several(free, 'message')} of {queue} {where}"
    if operation == "copy":
        what = f"copy {several(free + held, 'message')} of {queue} {where}"
    elif held:
        what += f" ({held} more {'is' if held == 1 else 'are'} held, and stay)"
    if missing:
        what += f"; {missing} of the ids {'is' if missing == 1 else 'are'} not there"
    return what


def of_queue(operation: str, queue: Mapping[str, Any]) -> list[str]:
    """What becomes of a queue, and of whom it concerns."""
    said, depth = KINDS[operation].said(queue=queue["name"]), several(queue["depth"], "message")
    consumers = several(queue["consumers"], "consumer")
    if operation == "pause-queue":
        return [
            said,
            f"{consumers} of it get nothing until it is resumed, also after a restart of the broker.",
            "What consumers and transactions hold already stays with them; the queue goes on taking messages.",
        ]
    if operation == "resume-queue":
        return [said, f"{depth} go to {consumers} again."]

    sentences = [said]
    if queue["depth"] or queue["consumers"]:
        sentences.append(f"It has {depth} and {consumers}. The broker refuses this, unless the box below is ticked.")
    if queue["held"] or queue["pending"]:
        sentences.append(
            f"Transactions or prepared branches hold {several(queue['held'], 'message')} of it and post "
            f"{queue['pending']} to it. As long as they do, the broker refuses to delete it."
        )
    return sentences


def of_others(operation: str, about: str) -> list[str]:
    """What becomes of a connection, a branch or a user."""
    kind = KINDS[operation]
    return [kind.said(**{kind.about[0]: about}), *_CONSEQUENCES[operation]]


_CONSEQUENCES: Final = {
    "close-connection": (
        "What it held is free, as if the network had failed; prepared branches stay.",
        "A client that is built to connect again does so.",
    ),
    "drop-branch": ("What it holds is free. Its transaction manager hears that it was rolled back.",),
    "remove-user": ("The permissions go as well.",),
    "revoke-old-password": ("Clients that have the present password connect again; others are refused.",),
    "remove-permissions": ("What was attached before stays attached; what is asked from then on is refused.",),
}


def old_password(user: Mapping[str, Any]) -> list[str]:
    """What is to be known of passwords beside the present one."""
    said = []
    if user["old-password-left-ms"] is not None:
        said.append(f"the old password is valid for another {age(user['old-password-left-ms'] / 1000)}")
    if user["old-password-connections"]:
        said.append(f"{several(user['old-password-connections'], 'connection')} signed in with an old password")
    return said
