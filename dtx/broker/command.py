"""`xabridge broker`, and `python -m dtx`: runs the embedded broker until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import gc
import getpass
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dtx.broker.access.credentials import CredentialsError, set_password
from dtx.broker.access.permissions import PermissionsError
from dtx.broker.broker import Broker
from dtx.broker.config import DEFAULT_LISTEN, DEFAULT_STORE, load
from dtx.store.contract import StoreError
from dtx.store.sql import compact
from xa.configuration import ConfigurationError
from xa.open_string import shown, without_secrets
from xa.secrets import not_set
from xa.telemetry.log_lines import FORMATS, line, write_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dtx.broker.config import BrokerConfig

SUMMARY: Final = "run the embedded AMQP 1.0 broker with distributed transactions"
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
FLAGS: Final = (
    "listen",
    "listen_tls",
    "store",
    "certificate",
    "key",
    "client_ca",
    "users",
    "anonymous",
    "plain_without_tls",
    "standby",
    "http",
    "log_format",
)
"""The settings that go before those of the same names in the file."""
GC_THRESHOLD: Final = 20_000
"""A queue is many objects that a collection would look at in vain; what the broker drops is rarely in cycles."""
SWITCH_S: Final = 0.0005
"""How long the event loop keeps the interpreter from the threads of the store. With Python's 5 ms a message waits for
each of its statements while a peer floods the loop."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("--config", type=Path, help="a TOML file with a section [broker]")
    parser.add_argument(
        "--listen", action="append", metavar="HOST:PORT", help=f"where to listen (default {DEFAULT_LISTEN})"
    )
    parser.add_argument("--listen-tls", action="append", metavar="HOST:PORT", help="where to listen with TLS")
    parser.add_argument("--store", metavar="URL", help=f"the message store (default {DEFAULT_STORE})")
    parser.add_argument("--certificate", metavar="FILE", help="TLS: this broker's certificate, PEM")
    parser.add_argument("--key", metavar="FILE", help="TLS: the certificate's key, PEM")
    parser.add_argument("--client-ca", metavar="FILE", help="TLS: CA certificates that sign client certificates, PEM")
    parser.add_argument("--users", metavar="FILE", help="the file of users")
    parser.add_argument(
        "--user-from-env",
        action="append",
        default=[],
        metavar="NAME=VARIABLE",
        help="set a user's password in the file of users from an environment variable, before the broker starts",
    )
    parser.add_argument("--anonymous", action="store_true", default=None, help="accept peers that don't authenticate")

    parser.add_argument(
        "--plain-without-tls", action="store_true", default=None, help="accept passwords in the clear, without TLS"
    )
    parser.add_argument(
        "--standby", action="store_true", default=None, help="wait for the store while another process has it"
    )
    parser.add_argument(
        "--set-password",
        metavar="USER",
        help="add USER to the file of users, or change the password (asked for, or read from stdin), and exit",
    )
    parser.add_argument(
        "--compact", action="store_true", help="give unused space of a store in SQLite back to the system, and exit"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="where to answer /live, /ready and /metrics over HTTP (default nowhere)"
    )
    parser.add_argument("--log-format", choices=FORMATS, help="how log lines are written (default text)")
    parser.add_argument("--verbose", action="store_true", help="say more on stderr")


def run(arguments: argparse.Namespace, listening: Callable[[Broker], None] = lambda _: None) -> int:
    """Runs the broker; the exit code. `listening` is called when it listens."""
    try:
        config = load(arguments.config, {name: getattr(arguments, name) for name in FLAGS})
        write_lines(config.log_format, logging.INFO if arguments.verbose else logging.WARNING)
        for given in arguments.user_from_env:
            _set_user(config, given)
        if arguments.set_password is not None:
            return _set_password(config, arguments.set_password)

        if arguments.compact:
            return _compact(config)
        sys.setswitchinterval(SWITCH_S)
        return asyncio.run(_serve(config, listening))
    except (ConfigurationError, CredentialsError, PermissionsError) as error:
        sys.stderr.write(f"xabridge broker: {error}\n")
        return EXIT_USAGE
    except (StoreError, OSError) as error:
        sys.stderr.write(f"xabridge broker: {error}\n")
        return EXIT_FAILED


def _set_password(config: BrokerConfig, user: str) -> int:
    if config.users is None:
        raise ConfigurationError("--set-password needs the file of users: --users, or broker.users in the file")
    typed = sys.stdin.isatty()
    password = getpass.getpass(f"password of {user}: ") if typed else sys.stdin.readline().rstrip("\n")
    set_password(config.users, user, password)
    return EXIT_OK


def _compact(config: BrokerConfig) -> int:
    before, after = compact(config.store)
    sys.stdout.write(f"xabridge broker: the store had {before} octets, and has {after} now\n")
    return EXIT_OK


def _set_user(config: BrokerConfig, given: str) -> None:
    user, _, variable = given.partition("=")
    if config.users is None:
        raise ConfigurationError("--user-from-env: there is no file of users; name one with --users")
    if not user or not variable:
        raise ConfigurationError("--user-from-env: expected NAME=VARIABLE, a user and the variable with the password")
    password = os.environ.get(variable)
    if not password:
        raise ConfigurationError(f"--user-from-env: {not_set(variable)}")
    set_password(config.users, user, password)


async def _serve(config: BrokerConfig, listening: Callable[[Broker], None]) -> int:
    gc.disable()  # a start makes objects that stay, and nothing to collect
    broker = Broker(config)
    loop = asyncio.get_running_loop()
    if config.standby:
        _stop_by_signals(loop, broker)
    await broker.start()
    if not broker.addresses:
        return EXIT_OK

    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    gc.enable()
    _stop_by_signals(loop, broker)
    for notice in filter(None, (broker.notice, broker.monitoring.notice)):
        sys.stderr.write(line(config.log_format, notice, plain=f"xabridge broker: {notice}", level=logging.WARNING))
    where = ", ".join(map(str, broker.addresses))
    in_doubt = broker.container.registry.in_doubt_count
    branches = "1 branch" if in_doubt == 1 else f"{in_doubt} branches"
    said = [f"listening on {where} · {shown(config.store)} · {branches} in doubt"]
    if broker.http is not None:
        said.append(f"http://{broker.http}/live, /ready and /metrics")
    for one in said:
        sys.stdout.write(line(config.log_format, one, plain=f"xabridge broker: {one}"))
    sys.stdout.flush()
    listening(broker)
    await broker.run()
    if broker.failure is not None:
        why = f"stopped, because the store did: {broker.failure}"
        sys.stderr.write(line(config.log_format, why, plain=f"xabridge broker: {why}", level=logging.CRITICAL))
        return EXIT_FAILED
    return EXIT_OK


def _stop_by_signals(loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, broker.stop)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m dtx`."""
    parser = argparse.ArgumentParser(prog="python -m dtx", description=SUMMARY)
    add_arguments(parser)
    given = sys.argv[1:] if argv is None else argv
    arguments, unknown = parser.parse_known_args(given)
    if unknown:
        parser.error(without_secrets(f"unrecognized arguments: {' '.join(unknown)}", unknown))
    return run(arguments)
