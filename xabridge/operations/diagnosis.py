"""The checks of `xabridge doctor`: the decision log, the resource managers, and what their lists of branches in doubt
give away about clocks, orphans and node ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tm.log import LogDamaged, LogError, LogMissing, LogOfOtherVersion
from tm.log.factory import folder_of, look_at_log
from tm.log.folder_check import examine_folder
from xa import Code, XaError
from xa.diagnosis import Check, Diagnosing, Diagnosis, Health
from xa.gtrid import incarnation_name
from xa.open_string import shown
from xa.printable import escaped
from xa.secrets import masked
from xa.telemetry.conditions import (
    CLOCK_OFF,
    HEURISTIC_OUTCOME,
    OLD_S,
    RESOURCE_UNREACHABLE,
    SKEW_S,
    TRANSACTION_IN_DOUBT,
)
from xabridge.operations.recovery_pass import noting_command
from xabridge.operations.survey import DecisionKnowledge, State, contradiction
from xabridge.operations.survey import advice as next_step
from xabridge.text import age, listed, several

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tm.config import Configuration
    from tm.resources import Resource
    from xa.telemetry.conditions import Condition
    from xabridge.operations.progress import Progress
    from xabridge.operations.recovery_pass import PassPreview
    from xabridge.operations.site import Site
    from xabridge.operations.survey import Survey, TransactionView

_ADVICE: Final = {
    Code.XAER_RMFAIL: "start it, or make it reachable from this machine; its URL is {key}.url",
    Code.XAER_INVAL: "correct {key}.url",
    Code.XAER_RMERR: "follow the message; its URL is {key}.url",
}


@dataclass(frozen=True, slots=True)
class SubjectCheck:
    """A check, and what it was about: config, log, decisions, node, orphans, clock, or a resource's name. `condition`
    is the one that holds, where what was found is one of the list."""

    subject: str
    check: Check
    condition: Condition | None = None


def of_condition(subject: str, check: Check, condition: Condition) -> SubjectCheck:
    """A check that finds this condition, or that all is well."""
    return SubjectCheck(subject, check, None if check.health is Health.OK else condition)


# --- the decision log -------------------------------------------------------------------------------------------------


def examine_log(configuration: Configuration, deciders: Sequence[str]) -> Iterator[SubjectCheck]:
    """Where decisions become durable."""
    for check in _log_checks(configuration, deciders):
        yield SubjectCheck("log", check)


def _log_checks(configuration: Configuration, deciders: Sequence[str]) -> Iterator[Check]:
    url = configuration.log
    if url is None:
        if deciders:
            yield Check(Health.OK, "place", f"none: decisions live in {listed(deciders)}")
        else:
            yield nowhere_decided()
        return

    try:
        folder = folder_of(url)
    except ValueError as error:
        yield Check(Health.FAIL, "place", masked(str(error)), "correct log in the configuration")
        return
    if folder is not None:
        yield from examine_folder(folder)
    yield content_of(url, configuration.node)


def nowhere_decided() -> Check:
    """The check of a configuration without a place for decisions."""
    advice = 'set the place of the decisions: log = "file:///var/lib/xabridge/log"'
    return Check(Health.FAIL, "place", "no log is configured, and no resource decides", advice)


def content_of(url: str, node: str, missing: Health = Health.OK) -> Check:
    """The check of the log's content. `missing`: what it is worth that there is no log."""
    try:
        image = look_at_log(url, node)
    except LogMissing:
        if missing is Health.OK:
            return Check(missing, "content", "there is no log yet; the first start makes it")
        return Check(missing, "content", f"there is no log: {shown(url)}", "restore it, or correct log")
    except LogDamaged as error:
        return Check(Health.FAIL, "content", str(error), "restore the log from an undamaged copy")
    except LogOfOtherVersion as error:
        return Check(Health.FAIL, "content", str(error))
    except (LogError, ValueError, OSError) as error:
        return Check(Health.FAIL, "content", masked(str(error)), "follow the message; its URL is log")

    found = f"log {image.log_id.hex()}, opened {several(image.openings, 'time')}"
    if image.node != node:
        advice = f"it is that of node {image.node}: use that node id, or give {node} a folder of its own"
        return Check(Health.FAIL, "content", f"another node's: {image.node}", advice)
    cut = image.incarnations.cut
    if cut:
        advice = "if it is the newest copy: xabridge recover run --newest INCARNATION; otherwise restore the newest one"
        names = listed([one.hex() for one in cut])
        return Check(Health.WARN, "content", f"{found}; a copy, made while incarnation {names} was at work", advice)
    if image.heuristics:
        noted = several(len(image.heuristics), "heuristic outcome")
        return Check(Health.WARN, "content", f"{found}, {noted} noted", "look at them: xabridge recover list")
    return Check(Health.OK, "content", found)


# --- resource managers ------------------------------------------------------------------------------------------------


def examine_site(site: Site, progress: Progress) -> dict[str, Diagnosis]:
    """The diagnosis of each resource manager; all are asked at once."""
    resources = list(site.resources.values())
    diagnosed: dict[str, Diagnosis] = {}
    with progress.step("asking", len(resources)) as done:
        for resource, diagnosis in zip(resources, site.at_once(_diagnosis), strict=True):
            done(resource.name)
            diagnosed[resource.name] = diagnosis
    return diagnosed


def _diagnosis(resource: Resource) -> Diagnosis:
    key = f"resources.{resource.name}"
    try:
        if isinstance(resource.rm, Diagnosing):
            return resource.rm.diagnose(resource.url)
        resource.reopen(now=True)
    except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
        error = raised if isinstance(raised, XaError) else resource.as_xa_error(raised, "diagnose")
        advice = _ADVICE.get(error.code, "correct {key}.url").format(key=key)
        return Diagnosis((Check(Health.FAIL, "opened", masked(error.message), advice),))
    return Diagnosis((Check(Health.OK, "opened", f"{shown(resource.url)}: {resource.rm.name}"),))


def silent(diagnosed: Mapping[str, Diagnosis]) -> list[str]:
    """The resources of which nothing more is known than why they can't be used: asked again, each would take as long as
    it takes to find that out."""
    return [name for name, of in diagnosed.items() if [check.health for check in of.checks] == [Health.FAIL]]


# --- what is in doubt -------------------------------------------------------------------------------------------------


def examine_survey(
    expected: PassPreview, diagnosed: Mapping[str, Diagnosis], *, has_log: bool = True
) -> Iterator[SubjectCheck]:
    """Decisions, orphans, node ids that clash, clocks; `diagnosed` is what the resource managers said before.
    `has_log`: there is one, in which an outcome can be noted."""
    found = expected.found
    failed = {name for name, of in diagnosed.items() if any(_is_in_the_way(check) for check in of.checks)}
    for name, why in found.unreachable.items():
        if name not in failed:
            check = Check(Health.FAIL, "in doubt", f"the branches in doubt can't be read: {masked(why)}", "see above")
            yield SubjectCheck(name, check, RESOURCE_UNREACHABLE)
    if found.log_trouble is None:
        decisions = _decisions(expected, has_log=has_log)
        yield from (of_condition("decisions", check, HEURISTIC_OUTCOME) for check in decisions)
    yield of_condition("orphans", _orphans(found), TRANSACTION_IN_DOUBT)
    yield SubjectCheck("node", _node(found))
    clock = _clock({name: of.clock_ahead_s for name, of in diagnosed.items()})
    if clock is not None:
        yield of_condition("clock", clock, CLOCK_OFF)


def _is_in_the_way(check: Check) -> bool:
    """Whether it says why a resource can't be used, and not what its server finds wrong at its work."""
    return check.health is Health.FAIL and check.condition is None


def _decisions(expected: PassPreview, *, has_log: bool) -> Iterator[Check]:
    """Those that have not ended, wherever decisions are kept, as `recover list` counts them; and branches that were
    completed otherwise than decided, until that is forgotten."""
    found = expected.found
    count = found.open_decisions + found.carried_out
    against = expected.not_carried_out
    counted = [f"{found.open_decisions} of transactions in doubt"] if found.open_decisions else []
    if found.carried_out:
        ends = "" if against else ", which the next recovery pass ends"
        counted.append(f"{found.carried_out} without a branch anywhere{ends}")
    what = f"{several(count, 'decision')} open: {listed(counted)}" if count else "none is open"
    yield Check(Health.OK, "decisions", what)

    if against:
        yield Check(Health.FAIL, "outcomes", _first(against), noting_command(has_log=has_log))
    completed = [(view, branch) for view in found.transactions for branch in view.against]
    if completed:
        said = _first([contradiction(view, branch) for view, branch in completed])
        yield Check(Health.FAIL, "outcomes", said, next_step(completed[0][0]))


def _first(said: Sequence[str]) -> str:
    more = f"; {len(said) - 1} more like this" if len(said) > 1 else ""
    return f"{said[0]}{more}"


def _orphans(survey: Survey) -> Check:
    branches = [branch for view in survey.transactions for branch in view.in_doubt]
    if not branches:
        return Check(Health.OK, "orphans", "nothing is in doubt")
    waiting = [branch for branch in branches if branch.state is not State.HEURISTIC]
    completed = len(branches) - len(waiting)
    oldest = max((branch.age_s for branch in waiting if branch.age_s is not None), default=None)
    found = [f"{several(len(waiting), 'branch')} in doubt"] if waiting else []
    if oldest is not None:
        found.append(f"the oldest for {age(oldest)}")
    if completed:
        found.append(f"{several(completed, 'branch')} completed by hand, or by the resource itself")
    what = ", ".join(found)

    advice = []
    if oldest is not None and oldest >= OLD_S:
        who = "those in doubt" if completed else "they"
        advice.append(f"{who} hold locks and messages until they are resolved: xabridge recover list")
    if completed:
        advice.append(
            "what was completed on its own waits to be compared with the data and forgotten: xabridge recover list"
        )
    return Check(Health.WARN if advice else Health.OK, "orphans", what, "; ".join(advice))


def _node(found: Survey) -> Check:
    """The check for branches of this node id that this log doesn't know: another process uses the id, or the log was
    replaced. That is not known where the log can't be read. Branches that the log leaves alone because it is a copy, or
    because the resource's data is older, are not another process's."""
    foreign = [
        view for view in found.transactions
        if view.decision is DecisionKnowledge.UNKNOWN and view.ours is not None and view.ours.node == found.node
    ]  # fmt: skip
    if not foreign:
        return Check(Health.OK, "node id", f"no other log uses the node id {found.node}")

    what = f"{several(len(foreign), 'transaction')} of node {found.node} in doubt"
    if not found.decisions_read:
        unknown = f"{what}; whose they are is not known, because decisions can't be read"
        return Check(Health.WARN, "node id", unknown, "see above")
    older = [view for view in foreign if view.of_older or view.finished_before]
    if older:
        advice = f"restore the set from one point, or look at each: xabridge recover show {older[0].name}"
        return Check(Health.FAIL, "node id", f"{what}, left alone: {older[0].why}", advice)
    logs = listed(sorted({_log_of(view) for view in foreign}))
    advice = (
        "give each process a node id of its own; if this node's log was replaced, restore the former one, or resolve "
        "its branches by hand: xabridge recover list"
    )
    return Check(Health.FAIL, "node id", f"{what} whose decisions are in {logs}", advice)


def _log_of(view: TransactionView) -> str:
    ours = view.ours
    return f"log {ours.log_id.hex()} (incarnation {incarnation_name(ours.incarnation)})" if ours is not None else "?"


def _clock(ahead_s: Mapping[str, float | None]) -> Check | None:
    known = {name: seconds for name, seconds in ahead_s.items() if seconds is not None}
    if not known:
        return None
    off = {name: seconds for name, seconds in known.items() if abs(seconds) >= SKEW_S}
    if not off:
        most = max(map(abs, known.values()))
        return Check(Health.OK, "clock", f"within {most:.1f} s of {listed([escaped(name) for name in known])}")
    said = [f"{name} {abs(by):.0f} s {'ahead' if by > 0 else 'behind'}" for name, by in off.items()]
    advice = "set the clocks by NTP: ages and leases are wrong by that difference"
    return Check(Health.WARN, "clock", f"compared with this machine's: {listed(said)}", advice)
