"""`recover list`, `show` and `watch`: looking, which changes nothing."""

from __future__ import annotations

import shutil
import sys
import time
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

from xa.printable import escaped
from xabridge.cli.output import write_json
from xabridge.cli.tables import MOST, WIDE_FROM, details, groups, rest, summary, table
from xabridge.exit_codes import Exit
from xabridge.operations.recovery_pass import expectation, finished_lines, not_carried_out, troubles
from xabridge.operations.selection import MANY, Filter, groups_of
from xabridge.operations.survey import (
    DecisionKnowledge,
    NotFound,
    State,
    Survey,
    TransactionView,
    find,
    state_of,
    survey,
)
from xabridge.operations.survey_json import missing_value, survey_value
from xabridge.text import NARROW, paragraph

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Sequence

    from xabridge.operations.progress import Progress
    from xabridge.operations.recovery_pass import MissingBranch
    from xabridge.operations.site import Site

States: TypeAlias = "dict[tuple[str, str], str]"

LEAST_PAUSE_S: Final = 0.05
_CLEAR: Final = "\x1b[H\x1b[J"


def filter_of(arguments: Namespace, node: str) -> Filter:
    """The filter that the arguments describe, at this node."""
    return Filter(
        frozenset(arguments.node),
        frozenset(arguments.rm),
        frozenset(map(State, arguments.state)),
        arguments.older_than,
        frozenset(map(DecisionKnowledge, arguments.decision)),
        frozenset({node}) if arguments.lost else None,
    )


def verdict(found: Survey, transactions: Sequence[TransactionView], nodes: Collection[str] = ()) -> Exit:
    """The exit code for a script. What other transaction managers have in doubt is shown, and is no trouble of ours;
    nor is what other nodes have, unless they were named."""
    if not found.complete:
        return Exit.INCOMPLETE
    return Exit.IN_DOUBT if found.unsolved(transactions, nodes) else Exit.DONE


def width_of(arguments: Namespace) -> int:
    """How wide the table may be."""
    if arguments.wide:
        return WIDE_FROM
    return shutil.get_terminal_size((NARROW, 24)).columns if sys.stdout.isatty() else NARROW


def list_transactions(site: Site, arguments: Namespace, progress: Progress) -> Exit:  # noqa: ARG001 — as all actions
    """`recover list`."""
    expected = expectation(site)
    found = expected.found
    wanted = filter_of(arguments, found.node)
    against = expected.not_carried_out if wanted == Filter() else ()

    transactions = wanted.of(found.transactions)
    if arguments.json:
        write_json(survey_value(found, transactions))
    elif arguments.names:
        for view in transactions:
            print(view.name)
        for line in (*against, *troubles(found)):
            print(line, file=sys.stderr)
    else:
        most = len(transactions) if arguments.all else MOST
        listed = table(transactions[:most], width_of(arguments))
        if len(transactions) > MANY:
            listed = [*groups(groups_of(transactions, frozenset({found.node}))), "", *listed]
        for line in (*listed, *rest(transactions[most:]), *summary(transactions, found)):
            print(line)
        for said in against if arguments.all else against[:MOST]:
            print(*paragraph(said), sep="\n")

    exit_code = verdict(found, transactions, arguments.node)
    return Exit.IN_DOUBT if exit_code is Exit.DONE and against else exit_code


def show_transactions(site: Site, arguments: Namespace, progress: Progress) -> Exit:  # noqa: ARG001 — as all actions
    """`recover show`."""
    expected = expectation(site)
    found = expected.found
    views: dict[TransactionView, None] = {}
    finished: dict[MissingBranch, None] = {}
    missing = []
    for name in arguments.xid:
        try:
            views[find(name, found.transactions)[0]] = None
        except NotFound as error:
            of_it = expected.missing_of(name)
            finished |= dict.fromkeys(of_it)
            missing += [] if of_it else [str(error)]

    if arguments.json:
        write_json(survey_value(found, tuple(views)) | missing_value(finished))
    else:
        for view in views:
            print(*details(view, found), sep="\n")
        for _, of_one in groupby(finished, lambda missing_branch: missing_branch[0].xid.gtrid):
            print(*finished_lines(tuple(of_one), has_log=site.configuration.log is not None), sep="\n")
    for line in (*missing, *troubles(found)):
        print(line, file=sys.stderr)
    if missing:
        return Exit.FAILED if found.complete else Exit.INCOMPLETE
    exit_code = verdict(found, tuple(views))
    return Exit.IN_DOUBT if exit_code is Exit.DONE and not_carried_out(finished) else exit_code


def watch_transactions(site: Site, arguments: Namespace, progress: Progress) -> Exit:  # noqa: ARG001 — as all actions
    """`recover watch`: on a terminal the list, again and again; else what has changed, a line each."""
    before: States = {}
    try:
        while True:
            found = survey(site.look())
            wanted = filter_of(arguments, found.node)
            transactions = wanted.of(found.transactions)
            now = _states(found, transactions, before)
            if arguments.json:
                write_json(survey_value(found, transactions), lines=True)
            elif sys.stdout.isatty():
                _screen(arguments, found, transactions, _changes(before, now) if before else [])
            else:
                for line in _changes(before, now):
                    print(f"{_clock()} {line}", flush=True)

            before = now
            time.sleep(max(arguments.interval, LEAST_PAUSE_S))
    except KeyboardInterrupt:
        return Exit.DONE


def _states(found: Survey, transactions: Sequence[TransactionView], before: States) -> States:
    """How each branch stands, by transaction and resource; of what could not be asked now, how it stood before."""
    states = {
        (view.name, branch.resource): f"{state_of(branch)}, decision {view.decision.value}"
        for view in transactions
        for branch in view.branches
    }
    kept = {key: state for key, state in before.items() if key[1] in found.unreachable and key[0]}
    silent = {("", name): f"could not be reached: {why}" for name, why in found.unreachable.items()}
    return {**kept, **states, **silent}


def _changes(before: States, now: States) -> list[str]:
    gone = [f"- {_said(key)}" for key in before if key not in now]
    return gone + [f"+ {_said(key)}: {escaped(state)}" for key, state in now.items() if before.get(key) != state]


def _said(key: tuple[str, str]) -> str:
    transaction, resource = key
    return f"{transaction} on {escaped(resource)}" if transaction else escaped(resource)


def _screen(
    arguments: Namespace, found: Survey, transactions: Sequence[TransactionView], changes: Sequence[str]
) -> None:
    size = shutil.get_terminal_size((NARROW, 24))
    head = f"xabridge recover watch · node {found.node} · {_clock()} · every {arguments.interval:g} s"
    body = table(transactions, width_of(arguments))
    foot = summary(transactions, found)
    foot += [*changes[:4], *([f"… and {len(changes) - 4} more changes"] if len(changes) > 4 else [])]
    room = max(size.lines - len(foot) - 3, 1)
    if len(body) > room:
        body = [*body[: room - 1], f"… and {len(body) - room + 1} more lines: xabridge recover list"]
    sys.stdout.write(_CLEAR + "\n".join([head, "", *body, *foot]) + "\n")
    sys.stdout.flush()


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
