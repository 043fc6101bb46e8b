"""`xabridge health`: asks a broker, a manager or a consumer how it is, over HTTP. For the health check of a container.

It tells a container engine by its exit code, and people by what it prints.
"""

from __future__ import annotations

import http.client
import json
import sys
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from xa.open_string import shown
from xa.printable import printable
from xa.telemetry.conditions import CONDITIONS
from xabridge.exit_codes import Exit
from xabridge.http_deadline import within

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from xa.telemetry.conditions import Condition

SUMMARY: Final = "ask a broker or a consumer over HTTP whether it is ready"
DEFAULT: Final = "http://127.0.0.1:9464/ready"
LONGEST_S: Final = 3600
MOST: Final = 65_536
"""Octets of the answer that are shown."""
_EXITS: Final = "exit codes: 0 it is well · 1 it says that it is not · 2 usage · 4 it could not be reached"


def add_arguments(parser: ArgumentParser) -> None:
    """The address, and how long to wait."""
    parser.epilog = _EXITS
    parser.add_argument(
        "url", nargs="?", default=DEFAULT, metavar="URL", help=f"what to ask: /ready or /live (default {DEFAULT})"
    )
    parser.add_argument("--timeout", type=_seconds, default=5.0, metavar="S", help="for so long at most (default 5)")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= LONGEST_S:
        raise ArgumentTypeError(f"expected seconds, above 0 and at most {LONGEST_S}")
    return seconds


def _conditions(body: str) -> list[Condition]:
    """Those that a broker says hold."""
    try:
        held = json.loads(body).get("conditions")
    except (ValueError, AttributeError, RecursionError):
        return []
    return [condition for condition in CONDITIONS if condition.name in held] if isinstance(held, dict) else []


def run(arguments: Namespace) -> Exit:
    """Asks; the exit code."""
    try:
        url = urlsplit(arguments.url)
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if host is None or url.scheme != "http":
        sys.stderr.write(f"xabridge health: {printable(shown(arguments.url))}: expected a URL such as {DEFAULT}\n")
        return Exit.USAGE
    connection = None
    try:
        connection = http.client.HTTPConnection(host, port or 80, timeout=arguments.timeout)
        with within(arguments.timeout, connection):
            connection.request("GET", url.path or "/")
            response = connection.getresponse()
            body = response.read(MOST).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        sys.stderr.write(f"xabridge health: {printable(shown(arguments.url))} could not be reached: {printable(why)}\n")
        return Exit.INCOMPLETE
    finally:
        if connection is not None:
            connection.close()

    for line in body.splitlines():
        print(printable(line, MOST))
    for condition in _conditions(body):
        sys.stderr.write(f"{condition.name}: {condition.means}; first: {condition.command}\n")
    return Exit.DONE if response.status == 200 else Exit.FAILED
