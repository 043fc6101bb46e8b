"""`recover list`, `show` and `watch`: looking, which changes nothing."""

from __future__ import annotations

import shutil
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Final

from tm.cli import as_json
from tm.cli.exits import Exit
from tm.cli.names import NotFound, find
from tm.cli.survey import Filter, State, Survey, TransactionView, survey
from tm.cli.tables import NARROW, WIDE_FROM, details, state_of, summary, table, troubles
from tm.cli.text import printable

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from tm.cli.progress import Progress
    from tm.cli.site import Site

_CLEAR: Final = "\x1b[H\x1b[J"


def filter_of(arguments: Namespace) -> Filter:
    """The filter that the arguments describe."""
    return Filter(
        frozenset(arguments.node),
        frozenset(arguments.rm),
        frozenset(map(State, arguments.state)),
        arguments.older_than,
    )


def verdict(found: Survey, transactions: Sequence[TransactionView]) -> Exit:
    """What to tell a script."""
    if not found.complete:
        return Exit.INCOMPLETE
    return Exit.IN_DOUBT if transactions else Exit.DONE


def width_of(arguments: Namespace) -> int:
    """How wide the table may be."""
    if arguments.wide:
        return WIDE_FROM
    return shutil.get_terminal_size((NARROW, 24)).columns if sys.stdout.isatty() else NARROW


def list_transactions(site: Site, arguments: Namespace, progress: Progress) -> Exit:  # noqa: ARG001 — as all actions
    """`recover list`."""
    found = survey(site.look())
    transactions = filter_of(arguments).of(found.transactions)
    if arguments.json:
        as_json.write(as_json.survey_value(found, transactions))
    elif arguments.names:
        for view in transactions:
            print(view.name)
        for line in troubles(found):
            print(line, file=sys.stderr)
    else:
        for line in (*table(transactions, width_of(arguments)), *summary(transactions, found)):
            print(line)
    return verdict(found, transactions)


def show_transactions(site: Site, arguments: Namespace, progress: Progress) -> Exit:  # noqa: ARG001 — as all actions
    """`recover show`."""
    found = survey(site.look())
    views: dict[TransactionView, None] = {}
    missing = []
    for name in arguments.xid:
        try:
            views[find(name, found.transactions)[0]] = None
        except NotFound as error:
            missing.append(str(error))
    if arguments.json:
        as_json.write(as_json.survey_value(found, tuple(views)))
    else:
        for view in views:
            print(*details(view, found), sep="\n")
    for line in (*missing, *troubles(found)):
        print(line, file=sys.stderr)
    if missing:
        return Exit.FAILED if found.complete else Exit.INCOMPLETE
    return verdict(found, tuple(views))


def watch_transactions(
    site: Site, arguments: Namespace, progress: Progress, sleep: Callable[[float], None] = time.sleep  # noqa: ARG001
) -> Exit:  # fmt: skip
    """`recover watch`: on a terminal the list, again and again; else what has changed, a line each."""
    wanted = filter_of(arguments)
    before: dict[str, str] | None = None
    try:
        while True:
            found = survey(site.look())
            transactions = wanted.of(found.transactions)
            now = _states(transactions)
            if arguments.json:
                as_json.write(as_json.survey_value(found, transactions), lines=True)
            elif sys.stdout.isatty():
                _screen(arguments, found, transactions, before, now)
            else:
                for line in _changes(before or {}, now):
                    print(f"{_clock()} {line}", flush=True)
            before = now
            sleep(arguments.interval)
    except KeyboardInterrupt:
        return Exit.DONE


def _states(transactions: Sequence[TransactionView]) -> dict[str, str]:
    return {
        f"{view.name} on {printable(branch.resource)}": f"{state_of(branch)}, decision {view.decision.value}"
        for view in transactions
        for branch in view.branches
    }


def _changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    gone = [f"- {name}" for name in before if name not in now]
    return gone + [f"+ {name}: {state}" for name, state in now.items() if before.get(name) != state]


def _screen(
    arguments: Namespace,
    found: Survey,
    transactions: Sequence[TransactionView],
    before: dict[str, str] | None,
    now: dict[str, str],
) -> None:
    size = shutil.get_terminal_size((NARROW, 24))
    head = f"xabridge recover watch · node {found.node} · {_clock()} · every {arguments.interval:g} s"
    body = table(transactions, width_of(arguments))
    foot = summary(transactions, found)
    if before is not None and before != now:
        changes = _changes(before, now)
        foot += changes[:4] + ([f"… and {len(changes) - 4} more changes"] if len(changes) > 4 else [])
    room = max(size.lines - len(foot) - 3, 1)
    if len(body) > room:
        body = [*body[: room - 1], f"… and {len(body) - room + 1} more lines: xabridge recover list"]
    sys.stdout.write(_CLEAR + "\n".join([head, "", *body, *foot]) + "\n")
    sys.stdout.flush()


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
