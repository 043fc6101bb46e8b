"""`xabridge console` serves the console until it is stopped."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xa.configuration import ConfigurationError, read_file
from xa.extras import install_command
from xa.telemetry.log_lines import TEXT, write_lines
from xabridge.exit_codes import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from tm.config import Configuration
    from xabridge.console.settings import ConsoleSettings

SUMMARY: Final = "show queues, dead letters and transactions in doubt in a browser"
DEFAULT: Final = "xabridge.toml"


def add_arguments(parser: ArgumentParser) -> None:
    """The flags."""
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        metavar="FILE",
        help=f"the configuration (default {DEFAULT}, if it is there)",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="where to listen (default 127.0.0.1:8161)")
    parser.add_argument(
        "--broker", action="append", default=[], metavar="[NAME=]URL",
        help="a broker in place of those of the configuration (repeatable)",
    )  # fmt: skip
    parser.add_argument("--certificate", metavar="FILE", help="TLS: the console's certificate, PEM")
    parser.add_argument("--key", metavar="FILE", help="TLS: the certificate's key, PEM")
    parser.add_argument("--verbose", action="store_true", help="say more on stderr")


def run(arguments: Namespace) -> int:
    """Serves; the exit code."""
    try:
        settings, configuration = settings_of(arguments)
        log_format = TEXT if configuration is None else configuration.log_format
        set_up_logging(verbose=arguments.verbose, log_format=log_format)
        from xabridge.console.server import Server  # noqa: PLC0415 — of the extra

        server = Server(settings, configuration)
    except ConfigurationError as error:
        sys.stderr.write(f"xabridge console: {error}\n")
        return Exit.USAGE
    except ModuleNotFoundError as error:
        sys.stderr.write(f"xabridge console: {missing(error)}\n")
        return Exit.USAGE
    except OSError as error:
        sys.stderr.write(f"xabridge console: {arguments.listen or 'listen'}: {error.strerror or error}\n")
        return Exit.FAILED
    sys.stdout.write(f"xabridge console: {server.address}\n")
    sys.stdout.flush()
    server.run()
    return 0


def missing(error: ModuleNotFoundError) -> str:
    """What to say where the console's packages are not installed."""
    return f"it needs the extra `console`: {install_command('console')} ({error})"


def set_up_logging(*, verbose: bool, log_format: str = TEXT) -> None:
    """Audit lines always, on stderr; others as much as is wanted."""
    write_lines(log_format, logging.INFO if verbose else logging.WARNING, named=True)
    logging.getLogger("xabridge.console.audit").setLevel(logging.INFO)


def settings_of(arguments: Namespace) -> tuple[ConsoleSettings, Configuration | None]:
    """The settings, and the configuration of the node if there is one; ConfigurationError."""
    from tm.config import configuration_from  # noqa: PLC0415 — `--help` needs none of this
    from xabridge.console.settings import console_settings  # noqa: PLC0415 — as above

    path: Path | None = arguments.config
    if path is None and Path(DEFAULT).is_file():
        path = Path(DEFAULT)
    flags = {"listen": arguments.listen, "certificate": arguments.certificate, "key": arguments.key}
    settings = console_settings(path, brokers=_brokers(arguments.broker), **flags)
    if path is None or not _has_a_node(path):
        return settings, None
    return settings, configuration_from(path)


def _brokers(given: list[str]) -> dict[str, str] | None:
    found = {}
    for number, one in enumerate(given, start=1):
        name, separator, url = one.partition("=")
        if not separator or "://" in name:
            name, url = "broker" if number == 1 else f"broker-{number}", one
        found[name] = url
    return found or None


def _has_a_node(path: Path) -> bool:
    """Whether the file configures a transaction manager, and not only a broker or a console."""
    file = read_file(path)
    return "node" in file.content and bool(file.table("resources").content)
