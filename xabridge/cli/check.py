"""`xabridge check`: looks at a restored set before anything of it is started, and says what does not fit together.

A set is the decision log of a configuration, the stores of brokers that do not run yet (`--store NAME=URL`), and the
other resources, which are asked as they stand: also what became of decided branches that are not there any more.
Nothing is changed. Each transaction in doubt is shown with what recovery would do, and where that would lose messages,
or have them twice, because a part is older than another one. It names the resources whose age it can't know.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from dtx.store.contract import StoreError, StoreOfOtherVersion
from tm.config import configuration_from
from tm.log import LogError, LogImage
from tm.log.factory import folder_of
from tm.recovery.lease import LEASE_S, RENEWALS
from tm.resources import ConfigurationError, ResourceConfig
from xa.diagnosis import VARIABLE, Check, Health
from xa.holdings import Holding, InDoubtBranch, Relation
from xa.open_string import OpenString, shown
from xa.printable import escaped
from xa.secrets import masked, says_not_set
from xabridge.cli.doctor import lines, value_of
from xabridge.cli.output import write_json
from xabridge.cli.recover import set_up_logging
from xabridge.exit_codes import Exit
from xabridge.operations.diagnosis import SubjectCheck, content_of, nowhere_decided
from xabridge.operations.progress import Progress
from xabridge.operations.recovery_pass import expectation, noting_command
from xabridge.operations.scan import ScannedResource
from xabridge.operations.site import Site
from xabridge.operations.survey import WAITING, DecisionKnowledge, State, by_hand
from xabridge.operations.survey import advice as next_step
from xabridge.text import age, held, listed, several

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Mapping

    from dtx.store.sql.inspection import StoreImage
    from tm.config import Configuration
    from xabridge.operations.recovery_pass import PassPreview
    from xabridge.operations.scan import ScannedSite
    from xabridge.operations.survey import BranchView, Survey, TransactionView

SUMMARY: Final = "look whether restored logs, stores and databases fit together, before they are started"
MOST: Final = 50
"""So many transactions are shown one by one."""
APART_S: Final = 1.0
"""Parts whose times are no farther apart than this are of one moment."""
NOTED_S: Final = 2.0
"""A store notes the time with a change, once a second; another second passes until it is due again."""
LOG_NOTED_S: Final = 10.0
"""A log in a database notes it when its lease is renewed, so often."""
DECIDER_NOTED_S: Final = LEASE_S / RENEWALS
"""And so does a resource that decides."""
LOG: Final = "the log"
INEXACT: Final = "it is not known to the second"
LOST: Final = (
    "what was committed in between is not in it: messages that were taken then come again, and those that were sent "
    "then are missing"
)
STORES: Final = frozenset({"amqp", "amqps", "dynamic+amqp", "dynamic+amqps"})
"""The schemes of brokers that may have a store of ours."""
OUTCOMES: Final = "outcomes"
"""The subject of the checks that find something completed against a decision."""
NOT_COMPARED: Final = "not compared"
"""The subject of the check that names the parts whose age is not known."""


@dataclass(frozen=True, slots=True)
class ContentTime:
    """The time of a part of the set: its content is from between `earliest_s` and `latest_s`, and it was at work at
    `worked_s`. `is_copy`: it is a copy that was made then, so that it lacks what came later; of other parts it is known
    when they were changed last, and they may have been at rest since."""

    earliest_s: float
    latest_s: float
    worked_s: float
    is_copy: bool = False


def add_arguments(parser: ArgumentParser) -> None:
    """The flags."""
    parser.add_argument(
        "--config", default="xabridge.toml", metavar="FILE", help="the configuration (default xabridge.toml)"
    )
    parser.add_argument(
        "--store", action="append", default=[], metavar="NAME=URL", type=_named,
        help="the store of the broker that the configuration calls NAME: it is read in place of asking that broker "
        "(repeatable)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--verbose", action="store_true", help="log to stderr")
    parser.epilog = "exit codes: 0 it fits together · 1 it does not, or a part can't be read · 2 usage, configuration"


def _named(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not name or not equals or "://" not in url:
        from argparse import ArgumentTypeError  # noqa: PLC0415 — where it is needed

        raise ArgumentTypeError(f"{shown(text)!r} is not NAME=URL, such as broker=sqlite:////restored/broker.db")
    return name, url


def run(arguments: Namespace) -> int:
    """Prints the checks; the exit code."""
    set_up_logging(verbose=arguments.verbose)
    progress = Progress(sys.stderr, quiet=arguments.verbose)
    try:
        configuration = configuration_from(arguments.config)
        found = list(_examine(configuration, dict(arguments.store), progress))
    except ConfigurationError as error:
        sys.stderr.write(f"xabridge check: {escaped(str(error))}\n")
        return Exit.USAGE

    failed = any(examined.check.health is Health.FAIL for examined in found)
    if arguments.json:
        write_json({"fits": not failed, "checks": [value_of(examined) for examined in found]})
        return Exit.FAILED if failed else Exit.DONE
    for examined in found:
        print(*lines(examined), sep="\n")
    counts = Counter(examined.check.health for examined in found)
    print(f"{several(len(found), 'check')}: " + ", ".join(f"{counts[health]} {health.value}" for health in Health))
    if failed and {examined.check.subject for examined in found if examined.check.health is Health.FAIL} == {OUTCOMES}:
        print("a decision was not carried out everywhere; nothing else is found that does not fit together")
    elif failed:
        print("it does not fit together: start no manager before that is settled")
    elif any(examined.check.found.endswith(INEXACT) for examined in found):
        print("nothing is found that does not fit together; not every age is known to the second")
    elif any(examined.check.health is Health.WARN for examined in found):
        print("nothing is found that does not fit together, but look at the warnings")
    elif any(examined.check.subject == NOT_COMPARED for examined in found):
        print("nothing is found that does not fit together; not every age was compared")
    else:
        print("it fits together")
    return Exit.FAILED if failed else Exit.DONE


# --- the parts --------------------------------------------------------------------------------------------------------


def _examine(configuration: Configuration, urls: Mapping[str, str], progress: Progress) -> Iterator[SubjectCheck]:
    """Every check."""
    others = dict(configuration.resources)
    for name in urls:
        _check_is_broker(name, others.pop(name, None))

    images: dict[str, StoreImage] = {}
    with Site(replace(configuration, resources=others), progress) as site:
        if configuration.log is not None:
            yield SubjectCheck("log", content_of(configuration.log, configuration.node, missing=Health.FAIL))
        elif not any(resource.decides for resource in site.resources.values()):
            yield SubjectCheck("log", nowhere_decided())
        for name, url in urls.items():
            image, checks = _store(url)
            yield from (SubjectCheck(name, check) for check in checks)
            if image is not None:
                images[name] = image
        seen = _with_stores(site.look(), images, configuration)
        expected = expectation(site, seen)

    for name, why in seen.unreachable.items():
        advice = VARIABLE if says_not_set(why) else "start it"
        yield SubjectCheck(name, Check(Health.FAIL, "in doubt", f"it can't be asked: {masked(why)}", advice))
    moments = {name: _moment_of(image) for name, image in images.items()}
    deciding = _deciding(configuration, seen)
    carried_out = seen.log.carried_out if isinstance(seen.log, LogImage) else {}
    yield from _lacking(moments, carried_out)
    yield from _ages(deciding, moments)
    yield from _not_compared(seen, moments)
    older = {name for name, at in moments.items() if any(_is_older(at, decider) for decider in deciding.values())}
    yield from _transactions(expected.found, older)
    yield from _decisions(seen, expected, older, has_log=configuration.log is not None)


def _check_is_broker(name: str, config: ResourceConfig | str | None) -> None:
    """ConfigurationError: the resource has no store that could be read in its place."""
    if config is None:
        raise ConfigurationError(f"--store {name}: there is no such resource in the configuration")
    wanted = ResourceConfig(config) if isinstance(config, str) else config
    if wanted.mode == "decider":
        raise ConfigurationError(f"--store {name}: it decides, so it has to run to be asked")

    scheme = OpenString.parse(wanted.url).scheme
    if scheme not in STORES:
        raise ConfigurationError(
            f"--store {name}: {name} is {scheme}://, no broker of this project: it has to run to be asked"
        )


def _store(url: str) -> tuple[StoreImage | None, list[Check]]:
    from dtx.broker.broker import rehearse_start  # noqa: PLC0415 — loads SQLAlchemy
    from dtx.store.sql.inspection import look_at_store  # noqa: PLC0415 — likewise

    try:
        image = look_at_store(url, rehearse_start)
    except StoreOfOtherVersion as error:
        return None, [Check(Health.FAIL, "store", str(error))]
    except StoreError as error:
        return None, [Check(Health.FAIL, "store", str(error), "restore it from another copy, or correct its URL")]
    if image.copied_ms is not None:
        what = f"a copy, made {_shown(image.copied_ms / 1000)}"
    else:
        what = f"as its broker left it, last at work {_shown(image.last_ms / 1000)}" if image.last_ms else "never used"
    found = f"opened {several(image.openings, 'time')}, {what}; {several(len(image.branches), 'branch')} in doubt"
    if not image.faults:
        return image, [Check(Health.OK, "store", found)]
    return image, [Check(Health.FAIL, "store", fault, "restore it from another copy") for fault in image.faults]


def _with_stores(seen: ScannedSite, images: Mapping[str, StoreImage], configuration: Configuration) -> ScannedSite:
    """What was seen, and the stores in place of their brokers."""
    scanned = {**seen.scanned, **{name: _scanned(image) for name, image in images.items()}}
    return replace(seen, configured=tuple(configuration.resources), scanned=MappingProxyType(scanned))


def _scanned(image: StoreImage) -> ScannedResource:
    now_s = time.time()

    return ScannedResource(
        tuple(
            InDoubtBranch(
                branch.xid,
                max(0.0, now_s - branch.prepared_ms / 1000),
                branch.owner,
                branch.outcome,
                tuple(
                    Holding(Relation.TO if one.sends else Relation.FROM, one.queue, "message", one.count)
                    for one in branch.holds
                ),
            )
            for branch in image.branches
        ),
        tells=True,
    )


# --- times ------------------------------------------------------------------------------------------------------------


def _moment_of(image: StoreImage) -> ContentTime:
    last_s = image.last_ms / 1000
    if image.copied_ms is not None:
        return ContentTime(image.copied_ms / 1000, image.copied_ms / 1000, last_s, is_copy=True)
    return ContentTime(last_s, last_s + NOTED_S, last_s)


def _deciding(configuration: Configuration, seen: ScannedSite) -> dict[str, ContentTime]:
    """The times of what keeps decisions, as far as it is known: of the log, and of resources that decide."""
    deciding = {
        name: ContentTime(worked_s, worked_s + DECIDER_NOTED_S, worked_s) for name, worked_s in seen.worked_at.items()
    }
    log = _moment_of_log(configuration)
    if seen.log is not None and not isinstance(seen.log, LogError) and seen.log.worked_at is not None:
        worked_s = seen.log.worked_at
        log = ContentTime(worked_s, worked_s + LOG_NOTED_S, worked_s)
    return deciding if log is None else {LOG: log, **deciding}


def _moment_of_log(configuration: Configuration) -> ContentTime | None:
    """When a log in files was written last, as far as its files tell; None for others."""
    try:
        folder = folder_of(configuration.log) if configuration.log is not None else None
        written = [] if folder is None else [file.stat().st_mtime for file in folder.glob("segment-*")]
    except (ValueError, OSError):  # which the check of the log says
        return None
    return ContentTime(max(written), max(written), max(written)) if written else None


def _is_older(at: ContentTime, log: ContentTime) -> bool:
    return at.latest_s + APART_S < log.earliest_s


def _lacking(moments: Mapping[str, ContentTime], carried_out: Mapping[str, float]) -> Iterator[SubjectCheck]:
    """The stores that lack what was carried out there, as the log knows."""
    for name, at in moments.items():
        latest_s = carried_out.get(name)
        if latest_s is not None and at.latest_s + APART_S < latest_s:
            found = (
                f"older than the log, which has carried out a decision of {_shown(latest_s)} there: "
                f"{age(latest_s - at.latest_s)} later at least"
            )
            advice = f"{LOST}. Restore the set from one point; or the clocks of the two machines differ by that much"
            yield SubjectCheck(name, Check(Health.FAIL, "age", found, advice))


def _ages(deciding: Mapping[str, ContentTime], moments: Mapping[str, ContentTime]) -> Iterator[SubjectCheck]:
    pairs = [(*part, *decider) for part in moments.items() for decider in deciding.items()]

    for name, at, what, log in pairs:
        if _is_older(at, log) and at.is_copy:
            found = f"older than {what}, by {age(log.earliest_s - at.latest_s)} at least"
            yield SubjectCheck(name, Check(Health.WARN, "age", found, LOST))
        elif _is_older(at, log):
            found = (
                f"changed last {age(log.earliest_s - at.latest_s)} or more before {what} was: older, or at rest since"
            )
            yield SubjectCheck(name, Check(Health.WARN, "age", found, f"if it is an older copy, {LOST}"))
        elif log.latest_s + APART_S < at.worked_s:
            found = f"newer than {what} was last written, by {age(at.worked_s - log.latest_s)}"
            advice = f"if {what} is an older copy, it lacks what was decided since: put the newest one in its place"
            yield SubjectCheck(name, Check(Health.WARN, "age", found, advice))
        elif at.earliest_s + APART_S < log.latest_s:
            found = f"older than {what} or not, by {age(log.latest_s - at.earliest_s)} at most: {INEXACT}"
            advice = "it is sure of a set that was copied at rest, or in one snapshot"
            yield SubjectCheck(name, Check(Health.WARN, "age", found, advice))
        else:
            yield SubjectCheck(name, Check(Health.OK, "age", f"of about the same time as {what}"))


def _not_compared(seen: ScannedSite, moments: Mapping[str, ContentTime]) -> Iterator[SubjectCheck]:
    """The resources that were asked, whose age is not known."""
    asked = [name for name in seen.scanned if name not in moments and name not in seen.deciding]
    if asked:
        names = listed([escaped(name) for name in asked])
        found = f"{names}: asked for what is in doubt; how old the data is, is not known"
        advice = "compare a broker before it is started, by its store: --store NAME=URL"
        yield SubjectCheck("age", Check(Health.OK, NOT_COMPARED, found, advice))


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")


# --- transactions -----------------------------------------------------------------------------------------------------


def _transactions(found: Survey, older: set[str]) -> Iterator[SubjectCheck]:
    if found.log_trouble is not None:
        return  # the check of the log has said so
    views = [view for view in found.transactions if view.in_doubt]
    if not views:
        yield SubjectCheck("branches", Check(Health.OK, "in doubt", "nothing is in doubt"))
    examined_views = [_transaction(view, older) for view in views]
    examined_views.sort(key=lambda examined: examined.check.health is not Health.FAIL)
    yield from examined_views[:MOST]
    rest = Counter(examined.check.health for examined in examined_views[MOST:])
    for health, count in rest.items():
        yield SubjectCheck("branches", Check(health, "in doubt", f"{several(count, 'more transaction')}", "use --json"))


def _transaction(view: TransactionView, older: set[str]) -> SubjectCheck:
    there = [branch for branch in view.branches if branch.state in WAITING and branch.noted is None]
    completed = [branch.resource for branch in view.in_doubt if branch.noted is not None or branch.outcome is not None]
    where = listed([_held_on(branch) for branch in there])
    name = escaped(view.name)
    if view.against:
        against = listed([branch.resource for branch in view.against])
        on_its_own = f"; completed against the decision on {escaped(against)}"
        completed_check = Check(Health.FAIL, OUTCOMES, "", next_step(view))
    elif completed:
        on_its_own = f"; completed on its own on {escaped(listed(completed))}"
        completed_check = Check(Health.WARN, "in doubt", "", f"look at it: xabridge recover show {name}")
    else:
        on_its_own, completed_check = "", Check(Health.OK, "in doubt", "")

    if view.decision is DecisionKnowledge.COMMIT:
        missing = [branch.resource for branch in view.branches if branch.state is State.FINISHED]
        lacking = [resource for resource in missing if resource in older]
        what = f"{name}: decided" + (f"; recovery commits it on {where}" if there else "") + on_its_own
        if lacking:
            advice = (
                f"nothing of it is on {listed(lacking)}, which may be older than the log: if it was not committed "
                "there before, its work is lost there. Restore the set from one point, or do that work again"
            )
            return _of_transactions(Health.FAIL, what, advice)
        return SubjectCheck("branches", replace(completed_check, found=what))
    if view.decision is DecisionKnowledge.NONE:
        what = f"{name}: not decided; recovery rolls it back on {where}{on_its_own}"
        old = [branch.resource for branch in there if branch.resource in older]
        if old:
            advice = (
                f"{listed(old)} may be older than the log, which forgets a decision that was carried out. If it was "
                "committed in between, a rollback splits it: compare the data, then xabridge recover rollback, or "
                "commit with --heuristic, or restore the set from one point"
            )
            return _of_transactions(Health.FAIL, what, advice)
        return SubjectCheck("branches", replace(completed_check, found=what))
    if view.decision is DecisionKnowledge.ENDED:
        return SubjectCheck("branches", replace(completed_check, found=f"{name}: {view.why}{on_its_own}"))

    if view.finished_before:
        advice = (
            "restore the set from one point. Or look what became of it on the other resources, and do the same here: "
            f"{by_hand(name)}"
        )
        return _of_transactions(Health.FAIL, f"{name}: left alone on {where}: {view.why}", advice)
    advice = (
        "restore the log that has its decision, start the node whose it is, or decide by hand, the same on every "
        f"resource: xabridge recover show {name}"
    )
    return _of_transactions(Health.FAIL, f"{name}: left alone on {where}: {view.why}", advice)


def _held_on(branch: BranchView) -> str:
    what = held(branch.holdings, branch.omitted) if branch.holdings else ""
    return escaped(branch.resource) + (f" ({what})" if what else "")


def _of_transactions(health: Health, found: str, advice: str = "") -> SubjectCheck:
    return SubjectCheck("branches", Check(health, "in doubt", found, advice))


def _decisions(seen: ScannedSite, expected: PassPreview, older: set[str], *, has_log: bool) -> Iterator[SubjectCheck]:
    """Decisions of which no branch is found anywhere, and what is known of their branches."""
    advice = f"of a restored set, restore all parts from one point; otherwise {noting_command(has_log=has_log)}"
    for said in expected.not_carried_out[:MOST]:
        yield SubjectCheck("decisions", Check(Health.FAIL, OUTCOMES, said, advice))
    if len(expected.not_carried_out) > MOST:
        more = several(len(expected.not_carried_out) - MOST, "more branch")
        yield SubjectCheck("decisions", Check(Health.FAIL, OUTCOMES, f"{more} like these", advice))

    shown = {view.gtrid for view in expected.found.transactions if view.in_doubt}
    logged = seen.log.decisions if isinstance(seen.log, LogImage) else ()
    decided = [*logged, *(decision for those in seen.decided.values() for decision in those.values())]
    gone = [decision for decision in decided if decision.gtrid not in shown]
    if not gone:
        return

    lacking = sorted(older & {branch.resource for decision in gone for branch in decision.branches})
    what = f"{several(len(gone), 'decision')} of which no branch is found"
    if lacking:
        advice = (
            f"{listed(lacking)} may be older than the log: what was not committed there before is lost there. Restore "
            "the set from one point, or do that work again"
        )
        yield SubjectCheck("decisions", Check(Health.FAIL, "decisions", what, advice))
        return
    known = expected.known_committed
    if known:
        what += f"; {several(known, 'branch')} known to be committed"
    why = "what is not known was carried out before, or by hand, or lost on a resource that is older"
    yield SubjectCheck("decisions", Check(Health.OK, "decisions", f"{what}: {why}"))
