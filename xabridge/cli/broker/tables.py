"""Tables of queues, connections, links and branches, for a terminal of 60 columns. Pure: lines come of maps.

The first column is a name, which users copy into the next command: it is never cut. A name that is too long has a line
of its own. Numbers stand at the right.
"""

from __future__ import annotations

import json
import textwrap
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from xa import Xid
from xa.printable import escaped
from xabridge.operations.broker_changes import branch_word, old_password, posted_words, why_dead
from xabridge.text import age, amount, columns, octets, several, table_row, transaction_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH: Final = 60
INDENT: Final = "    "
SHOWN_BRANCHES: Final = 5
QUEUE_COLUMNS: Final = 24
"""A longer name of a queue of dead letters stands below."""


def since(now_ms: int, then_ms: int | None) -> str:
    """How long ago; "?" where that is not known."""
    return age(None if then_ms is None else max(now_ms - then_ms, 0) / 1000)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[Sequence[str]], left: int = 1
) -> list[str]:
    """The lines: `left` columns stand at the left, the others at the right. `below` are lines for below each row."""
    rest = [max(columns(row[column]) for row in (head, *rows)) for column in range(1, len(head))]
    room = max(WIDTH - sum(rest) - len(rest) - 1, 8)
    names = [columns(row[0]) for row in rows]
    first = max(len(head[0]), *(width for width in names if width <= room), 0) if rows else len(head[0])
    lines = []
    for number, row in enumerate((head, *rows)):
        name = row[0]
        if columns(name) > first:
            lines.append(name)
            name = ""
        lines.append(table_row((name, *row[1:]), (first + 1, *rest), range(left, len(row)), " "))
        if number:
            lines += [f"{INDENT}{line}" for line in below[number - 1]]
    return lines


def wrapped(text: str) -> list[str]:
    """`text` in lines that fit below a row."""
    return textwrap.wrap(text, WIDTH - len(INDENT), break_long_words=False, break_on_hyphens=False)


def queues(found: Sequence[Mapping[str, Any]], now_ms: int) -> list[str]:
    """The table of queues."""
    if not found:
        return ["no queues"]
    rows, below = [], []
    for queue in found:
        oldest = since(now_ms, queue["oldest"]) if queue["depth"] else "-"
        rows.append(
            (
                escaped(queue["name"]), amount(queue["depth"]), amount(queue["held"]), octets(queue["octets"]),
                oldest, amount(queue["consumers"]), amount(queue["rate-in"]), amount(queue["rate-out"]),
            )
        )  # fmt: skip
        below.append(_notes(queue))
    return table(("QUEUE", "DEPTH", "HELD", "SIZE", "OLDEST", "CONS", "IN/S", "OUT/S"), rows, below)


def _notes(queue: Mapping[str, Any]) -> list[str]:
    notes = []
    if queue.get("paused"):
        notes.append(f"paused: {queue['paused']}")
    if queue.get("unreadable"):
        notes += wrapped(
            f"{several(queue['unreadable'], 'message')} can't be read: `xabridge check` says what is damaged"
        )
    notes += posted_words(queue)
    for place, (xid, count) in enumerate(list(queue["locked-by"].items())[:SHOWN_BRANCHES]):
        notes += wrapped(f"{count} held by {branch_word(queue, place)} {_name(xid)}")
    left = queue["branches"] - min(len(queue["locked-by"]), SHOWN_BRANCHES)
    if left:
        notes.append(f"and {several(left, 'branch')} more")
    return notes


def _name(xid: str) -> str:
    return escaped(transaction_name(Xid.parse(xid)))


def messages(found: Sequence[Mapping[str, Any]], now_ms: int) -> list[str]:
    """The table of a queue's messages."""
    if not found:
        return ["no messages"]
    rows, below = [], []

    for one in found:
        left = "-" if one["expires"] is None else age(max(one["expires"] - now_ms, 0) / 1000)
        rows.append(
            (
                one["id"],
                one["state"],
                octets(one["octets"]),
                amount(one["deliveries"]),
                since(now_ms, one["posted"]),
                left,
            )
        )
        notes = _why_dead(one) if one["why"] or one["error"] else []
        below.append([*notes, "can't be read from the store"] if one.get("unreadable") else notes)
    return table(("ID", "STATE", "SIZE", "TRIES", "AGE", "EXPIRES"), rows, below, left=2)


def dead(found: Sequence[Mapping[str, Any]], now_ms: int) -> list[str]:
    """The table of dead letters."""
    if not found:
        return ["no dead letters"]
    rows, below = [], []
    for one in found:
        rows.append(
            (one["id"], one["state"], octets(one["octets"]), since(now_ms, one["since"]), escaped(one["queue"]))
        )
        below.append(_why_dead(one))
    if max(columns(row[-1]) for row in rows) <= QUEUE_COLUMNS:
        return table(("ID", "STATE", "SIZE", "DEAD", "QUEUE"), rows, below, left=2)
    below = [[*wrapped(f"in {row[-1]}"), *lines] for row, lines in zip(rows, below, strict=True)]
    return table(("ID", "STATE", "SIZE", "DEAD"), [row[:-1] for row in rows], below, left=2)


def dead_groups(found: Sequence[Mapping[str, Any]], now_ms: int, most: int) -> list[str]:
    """The table of groups of dead letters, the first `most`, and how many letters the others have."""
    if not found:
        return ["no dead letters"]
    rows, below = [], []
    for one in found[:most]:
        rows.append((one["id"], amount(one["letters"]), since(now_ms, one["since"])))
        below.append([*wrapped(f"in {escaped(one['queue'])}"), *_why_dead(one)])

    lines = table(("GROUP", "LETTERS", "LATEST"), rows, below)
    others = found[most:]
    if others:
        letters = several(sum(one["letters"] for one in others), "letter")
        lines.append(f"and {letters} in {several(len(others), 'group')} more: --most N shows them")
    return [
        *lines,
        "",
        "retry QUEUE --group GROUP sends those of one back; purge too",
        "deletes them. --all lists each",
    ]


def _why_dead(letter: Mapping[str, Any]) -> list[str]:
    return [line for said in why_dead(letter) for line in textwrap.wrap(escaped(said), WIDTH - len(INDENT))]


def users(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of users and permissions."""
    if not found:
        return ["no users, and no permissions"]
    rows, below = [], []
    for one in found:
        rule = json.loads(one["rule"]) if one["rule"] is not None else None
        rows.append((escaped(one["name"]), one["password-from"] or "-", one["rule-from"] or "-"))
        words = [
            name if value is True else f"{name} {value if isinstance(value, str) else ', '.join(value)}"
            for name, value in (rule or {}).items()
        ]
        lines = wrapped(escaped("; ".join(words) or "may do nothing")) if rule is not None else []
        below.append(lines + [line for said in old_password(one) for line in wrapped(said)])
    return table(("NAME", "PASSWORD", "PERMISSIONS"), rows, below, left=3)


def configuration(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the configuration: names and values are never cut."""
    lines = []
    for one in found:
        lines.append(f"{escaped(one['name'])} = {escaped(one['value'])}".rstrip())
        if one["from"] != "default":
            lines.append(f"{INDENT}from {escaped(one['from'])}")
    return lines or ["no settings"]


def audit(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the audit log."""
    if not found:
        return ["no entries"]
    lines = []

    for one in found:
        times = f"  {one['count']} times since {_moment(one['first'])}" if one["count"] > 1 else ""
        lines.append(f"{_moment(one['when'])}  {escaped(one['who'])}{times}")

        about = ", ".join(f"{name} {escaped(str(value))}" for name, value in one["about"].items())
        said = [f"{escaped(one['what'])}: {about}" if about else escaped(one["what"])]
        if one["outcome"] != "done":
            said.append(f"{one['outcome']}: {escaped(one['why'])}" if one["why"] else one["outcome"])
        if one["from"]:
            said.append(
                f"from {escaped(one['from'])}" + (f", for the browser {one['browser']}" if one["browser"] else "")
            )
        lines += [f"{INDENT}{line}" for text in said for line in wrapped(text)]
    return lines


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def connections(found: Sequence[Mapping[str, Any]], now_ms: int) -> list[str]:
    """The table of connections."""
    if not found:
        return ["no connections"]
    rows, below = [], []

    for one in found:
        rows.append(
            (
                one["number"], escaped(one["user"]), escaped(one["peer"]), since(now_ms, one["since"]),
                amount(one["rate-in"]), amount(one["rate-out"]),
            )
        )  # fmt: skip
        product = f", {escaped(one['product'])}" if one["product"] else ""
        counts = f"{several(one['sessions'], 'session')}, {several(one['links'], 'link')}"
        if one["transactions"]:
            counts += f", {several(one['transactions'], 'transaction')}"
        if one["old-password"]:
            counts += ", by an old password"
        below.append([*wrapped(f"{escaped(one['container'])}{product}"), counts])
    return table(("NUMBER", "USER", "PEER", "AGE", "IN/S", "OUT/S"), rows, below, left=3)


def links(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of links."""
    if not found:
        return ["no links"]
    rows = [
        (
            escaped(one["address"]) or "-", one["kind"], one["connection"], amount(one["credit"]),
            amount(one["unsettled"]), amount(one["messages"]),
        )
        for one in found
    ]  # fmt: skip
    return table(("ADDRESS", "KIND", "CONNECTION", "CREDIT", "UNSETTLED", "SENT"), rows, [()] * len(rows), left=3)


def branches(found: Sequence[Mapping[str, Any]], now_ms: int) -> list[str]:
    """The table of branches."""
    if not found:
        return ["no branches"]
    rows, below = [], []
    for branch in found:
        state = escaped(branch["state"]).partition(" ")[2]
        rows.append((_name(branch["xid"]), state, escaped(branch["owner"]) or "-", since(now_ms, branch["since"])))
        notes = []
        for queue, held in branch["holds"].items():
            words = [f"{held['retired']} from"] if held["retired"] else []
            words += [f"{held['posted']} to"] if held["posted"] else []
            notes += wrapped(f"{' and '.join(words)} {escaped(queue)}")
        below.append(notes)
    return table(("BRANCH", "STATE", "OWNER", "AGE"), rows, below, left=3)
