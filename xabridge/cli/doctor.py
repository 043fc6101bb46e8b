"""`xabridge doctor`: looks whether what a transaction manager needs is there and does what it must, and says how to
repair what is not. It changes nothing but a file of its own in the log's folder, which it removes again.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tm.config import configuration_from
from tm.resources import ConfigurationError
from xa.diagnosis import Check, Health
from xa.printable import escaped
from xa.telemetry.conditions import RESOURCE_UNREACHABLE
from xabridge.cli.outbox_checks import examine_outbox
from xabridge.cli.output import write_json
from xabridge.cli.recover import set_up_logging
from xabridge.exit_codes import Exit
from xabridge.operations.diagnosis import SubjectCheck, examine_log, examine_site, examine_survey, silent
from xabridge.operations.progress import Progress
from xabridge.operations.recovery_pass import expectation
from xabridge.operations.site import Site
from xabridge.text import NARROW, several

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from tm.config import Configuration

SUMMARY: Final = "check configuration, log and resource managers, and say how to fix what is wrong"


def add_arguments(parser: ArgumentParser) -> None:
    """The flags."""
    parser.add_argument(
        "--config", default="xabridge.toml", metavar="FILE", help="the configuration (default xabridge.toml)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--verbose", action="store_true", help="log to stderr")
    parser.epilog = "exit codes: 0 nothing failed · 1 a check failed · 2 usage"


def run(arguments: Namespace) -> int:
    """Prints the checks; the exit code."""
    set_up_logging(verbose=arguments.verbose)
    progress = Progress(sys.stderr, quiet=arguments.verbose)
    found: list[SubjectCheck] = []
    for examined in _examine(arguments.config, progress):
        found.append(examined)
        if not arguments.json:
            print(*lines(examined), sep="\n", flush=True)
    if arguments.json:
        write_json({"checks": [value_of(examined) for examined in found]})
    else:
        counts = Counter(examined.check.health for examined in found)
        print(f"{several(len(found), 'check')}: " + ", ".join(f"{counts[health]} {health.value}" for health in Health))
    failed = any(examined.check.health is Health.FAIL for examined in found)
    return Exit.FAILED if failed else Exit.DONE


def _examine(path: str, progress: Progress) -> Iterator[SubjectCheck]:
    """Every check, in the order in which one depends on the other."""
    try:
        configuration = configuration_from(path)
    except ConfigurationError as error:
        yield SubjectCheck(
            "config", Check(Health.FAIL, "configuration", str(error), "correct the file, then run doctor again")
        )
        return
    try:
        site = Site(configuration, progress)
    except ConfigurationError as error:
        advice = "correct the file, or install the package of the resource manager, then run doctor again"
        yield SubjectCheck("config", Check(Health.FAIL, "configuration", f"{path}: {error}", advice))
        return

    with site:
        yield _configured(path, configuration, site)
        yield from examine_log(configuration, [name for name, held in site.resources.items() if held.decides])
        diagnosed = examine_site(site, progress)
        unreachable = silent(diagnosed)
        for name, examined in diagnosed.items():
            condition = RESOURCE_UNREACHABLE if name in unreachable else None
            yield from (SubjectCheck(name, check, condition or check.condition) for check in examined.checks)
        yield from examine_outbox(path)
        try:
            expected = expectation(site, site.look(unreachable))
        except ConfigurationError:
            return  # the log's URL names no log, which the check of the log has said
        yield from examine_survey(expected, diagnosed, has_log=configuration.log is not None)


def _configured(path: str, configuration: Configuration, site: Site) -> SubjectCheck:
    managers = several(len(site.resources), "resource manager")
    if not site.resources:
        advice = 'name what takes part: [resources], then name = "url"'
        check = Check(Health.WARN, "configuration", f"{path}: node {configuration.node}, {managers}", advice)
    else:
        check = Check(Health.OK, "configuration", f"{path}: node {configuration.node}, {managers}")
    return SubjectCheck("config", check)


def lines(examined: SubjectCheck) -> Iterator[str]:
    """One check for people, in 80 columns."""
    check = examined.check
    subject = escaped(examined.subject)
    margin = " " * 17
    head = f"{check.health.value:<6}{subject:<11}" if len(subject) <= 10 else f"{check.health.value:<6}{subject}"
    if len(subject) > 10:
        yield head
        head = margin
    named = f"condition: {examined.condition.name}" if examined.condition is not None else ""
    for first, text in ((head, check.found), (margin, check.advice), (margin, named)):
        if text:
            yield from textwrap.wrap(
                escaped(text), NARROW, initial_indent=first, subsequent_indent=margin, break_long_words=False,
                break_on_hyphens=False,
            )  # fmt: skip


def value_of(examined: SubjectCheck) -> dict[str, Any]:
    """One check for programs."""
    check = examined.check
    return {
        "health": check.health.value,
        "of": examined.subject,
        "check": check.subject,
        "found": check.found,
        "mend": check.advice,
        "condition": examined.condition.name if examined.condition is not None else None,
    }
