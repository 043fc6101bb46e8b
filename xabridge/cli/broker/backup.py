"""`xabridge broker backup`: a copy of the store, made beside the broker that is at work with it, without asking it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dtx.broker.config import load
from dtx.store.contract import StoreError
from dtx.store.sql.backup import back_up
from xa.configuration import ConfigurationError
from xa.printable import escaped
from xabridge.cli.output import write_json
from xabridge.exit_codes import Exit
from xabridge.text import several

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SUMMARY: Final = "copy the store, also while the broker is at work with it"


def add_arguments(parser: ArgumentParser) -> None:
    """The file, and where the store is named, which may be said on either side of `backup`."""
    from argparse import SUPPRESS  # noqa: PLC0415 — one name

    parser.add_argument("destination", metavar="FILE", type=Path, help="the new file; it must not exist")
    parser.add_argument("--config", type=Path, default=SUPPRESS, metavar="FILE", help="the broker's configuration")
    parser.add_argument("--store", default=SUPPRESS, metavar="URL", help="the store, if it is not the configuration's")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> Exit:
    """Copies it; the exit code."""
    try:
        config = load(arguments.config, {"store": arguments.store})
        made = back_up(config.store, arguments.destination)
    except ConfigurationError as error:
        return _complain(error, Exit.USAGE)
    except StoreError as error:
        return _complain(error, Exit.FAILED)

    if arguments.json:
        write_json(
            {
                "destination": str(arguments.destination),
                "openings": made.openings,
                "messages": made.messages,
                "branches": made.branches,
                "octets": made.octets,
            }
        )
        return Exit.DONE
    what = f"{several(made.messages, 'message')}, {several(made.branches, 'branch')} in doubt"
    print(f"{arguments.destination}: {what}, {made.octets:,} octets")
    return Exit.DONE


def _complain(said: object, code: Exit) -> Exit:
    sys.stderr.write(f"xabridge broker backup: {escaped(str(said))}\n")
    return code
