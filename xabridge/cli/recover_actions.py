"""`recover commit`, `rollback`, `forget` and `end`: plans are explained and confirmed, then carried out."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from tm.log import LogError
from xa import XaError
from xa.printable import escaped
from xabridge.cli.output import asks_for_yes, write_json
from xabridge.cli.recover_views import filter_of
from xabridge.exit_codes import Exit
from xabridge.operations.branch_completion import (
    BranchCompleter,
    DecisionChanged,
    Plan,
    explained,
    needs_the_log,
    plan,
    refusal,
)
from xabridge.operations.decision_end import Result, carry_out, explained_end, planned_end, result_lines, result_value
from xabridge.operations.recovery_pass import troubles
from xabridge.operations.selection import Filter, chosen_for, explained_all
from xabridge.operations.survey import BranchView, NotFound, Survey, TransactionView, find, only_on, survey
from xabridge.text import listed, paragraph, several

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator

    from xabridge.operations.branch_completion import BranchResult
    from xabridge.operations.decision_end import DecisionEnding
    from xabridge.operations.progress import Progress
    from xabridge.operations.site import Site


def act(site: Site, arguments: Namespace, progress: Progress) -> Exit:
    """`recover commit`, `rollback`, `forget`."""
    found = survey(site.look())
    wanted = filter_of(arguments, found.node)
    if (wanted == Filter()) is not bool(arguments.xid):
        print("name transactions, or say with --node, --decision, … which ones are meant", file=sys.stderr)
        return Exit.USAGE
    try:
        plans = list(_plans(found, arguments)) if arguments.xid else _fitting(found, wanted, arguments)
    except NotFound as error:
        return _not_found(error, found)

    for planned in plans if arguments.xid else ():
        _explain(explained(planned))
    refused = refusal(plans, heuristic=arguments.heuristic, anyway="pass --heuristic")
    if refused is not None:
        return _nothing_done(arguments, plans, refused)
    if arguments.dry_run:
        _tell(arguments, _value(plans, [], "dry run: nothing was done"))
        return Exit.DONE
    asked = f"{arguments.act.value} {several(sum(len(planned.steps) for planned in plans), 'branch')}"
    if not arguments.yes and not _confirmed(asked):
        return _nothing_done(arguments, plans, "not confirmed")
    needs_log = any(needs_the_log(planned) for planned in plans)
    with site.holding_the_log() if needs_log else nullcontext() as log:
        return _carry_out(BranchCompleter(site, log), plans, arguments, progress)


def _plans(found: Survey, arguments: Namespace) -> Iterator[Plan]:
    """A plan for each transaction; NotFound for what is not there."""
    chosen: dict[tuple[int, bytes], tuple[TransactionView, dict[BranchView, None]]] = {}
    for name in arguments.xid:
        view, branches = find(name, found.transactions)
        kept = chosen.setdefault((view.format_id, view.gtrid), (view, {}))[1]
        kept |= dict.fromkeys(only_on(branches, arguments.on, name))
    for view, kept_branches in chosen.values():
        planned = plan(arguments.act, view, tuple(kept_branches), complete=found.complete)
        if not planned.steps:
            raise NotFound(f"{view.name}: these branches are finished already")
        yield planned


def _fitting(found: Survey, wanted: Filter, arguments: Namespace) -> list[Plan]:
    """The plans for all that fit the filter, explained; NotFound where there are none."""
    fitting = wanted.of(found.transactions)
    chosen = chosen_for(arguments.act, fitting, on=arguments.on, complete=found.complete)
    if chosen.plans:
        _explain([*explained_all(chosen.plans), *chosen.left_out])
        return list(chosen.plans)
    for said in chosen.left_out:
        print(*paragraph(said), sep="\n", file=sys.stderr)
    raise NotFound("nothing that is in doubt here fits, and can be done with others")


def _carry_out(hand: BranchCompleter, plans: list[Plan], arguments: Namespace, progress: Progress) -> Exit:
    results: list[BranchResult] = []
    trouble = None
    with progress.step(arguments.act.value, len(plans)) as done:
        for planned in plans:
            try:
                results += hand.carry_out(planned)
            except (DecisionChanged, LogError) as error:
                trouble = str(error)
                break
            except XaError as error:
                trouble = f"{planned.view.name}: no branch was touched: {error.message}"
                break
            done(planned.view.name)

    _tell(arguments, _value(plans, results, trouble), [result.line for result in results])
    if trouble is not None or not all(result.ok for result in results):
        return Exit.FAILED
    return Exit.DONE


def _nothing_done(arguments: Namespace, plans: list[Plan], why: str) -> Exit:
    _tell(arguments, _value(plans, [], f"nothing was done: {why}"))
    return Exit.REFUSED


def _value(plans: list[Plan], results: list[BranchResult], trouble: str | None) -> dict[str, Any]:
    return {
        "act": plans[0].act.value,
        "plan": [
            {
                "transaction": planned.view.name,
                "decision": planned.view.decision.value,
                "why": planned.view.why,
                "resource": step.branch.resource,
                "xid": str(step.branch.xid),
                "consent": step.consent.name.lower(),
                "what": step.what,
            }
            for planned in plans
            for step in planned.steps
        ],
        "done": [
            {
                "resource": result.branch.resource,
                "xid": str(result.branch.xid),
                "ok": result.ok,
                "said": result.said,
            }
            for result in results
        ],
        "trouble": trouble,
    }


# --- recover end ------------------------------------------------------------------------------------------------------
def end(site: Site, arguments: Namespace, progress: Progress) -> Exit:
    """`recover end`."""
    seen = site.look()
    found = survey(seen)
    try:
        view, _ = find(arguments.xid, found.transactions)
    except NotFound as error:
        return _not_found(error, found)

    ending = planned_end(view, seen, found, frozenset(arguments.gone))
    _explain(explained_end(ending))
    if ending.refused is not None:
        return _not_ended(arguments, ending, ending.refused)
    if arguments.dry_run:
        _tell(arguments, result_value(ending, Result(trouble="dry run: nothing was done")))
        return Exit.DONE
    without = listed([escaped(name) for name in sorted(ending.gone)])
    if not arguments.yes and not _confirmed(f"end {view.name} without {without}"):
        return _not_ended(arguments, ending, "not confirmed")
    result = carry_out(site, ending, progress)
    _tell(arguments, result_value(ending, result), result_lines(ending, result))
    return Exit.DONE if result.ended else Exit.FAILED


def _not_ended(arguments: Namespace, ending: DecisionEnding, why: str) -> Exit:
    _tell(arguments, result_value(ending, Result(trouble=f"nothing was done: {why}")))
    return Exit.REFUSED


# --- what both say ----------------------------------------------------------------------------------------------------
def _not_found(error: NotFound, found: Survey) -> Exit:
    print(str(error), *troubles(found), sep="\n", file=sys.stderr)
    return Exit.FAILED if found.complete else Exit.INCOMPLETE


def _explain(paragraphs: list[str]) -> None:
    first, *steps = paragraphs
    print(*paragraph(first), sep="\n", file=sys.stderr)
    for step in steps:
        print(*paragraph(step, "  - ", "    "), sep="\n", file=sys.stderr)


def _confirmed(what: str) -> bool:
    """Whether the user at the terminal confirms `what`."""
    if not sys.stdin.isatty():
        print("not a terminal: pass --yes", file=sys.stderr)
        return False
    return asks_for_yes(what)


def _tell(arguments: Namespace, value: dict[str, Any], lines: Iterable[str] = ()) -> None:
    """The results, and what went wrong; `value` is all of it for JSON."""
    if arguments.json:
        write_json(value)
        return
    for line in lines:
        print(line)
    if value["trouble"] is not None:
        print(*paragraph(escaped(value["trouble"])), sep="\n", file=sys.stderr)
