"""`xabridge run`: runs an App, in one process or in several that are started again when they end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from argparse import SUPPRESS, ArgumentTypeError
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xa.printable import escaped
from xa.secrets import masked
from xa.telemetry.log_lines import TEXT, write_lines
from xa.telemetry.log_lines import lines as format_of
from xabridge.exit_codes import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from tm import Configuration
    from xabridge.app import App

logger = logging.getLogger("xabridge.run")

SUMMARY: Final = "run an application, and start its processes again when they end"
_MOST: Final = 1000
DEFAULT_FILE: Final = "xabridge.toml"
"""What an App reads that names no file."""
_EXITS: Final = (
    "exit codes: 0 stopped by a signal · 1 a consumer failed · 2 usage, or the application or its log can't be used"
)


def add_arguments(parser: ArgumentParser) -> None:
    """The App and the flags."""
    parser.epilog = _EXITS
    parser.add_argument("app", metavar="MODULE:APP", help="the App, as shop:app; MODULE is looked for here, too")
    parser.add_argument("--config", metavar="FILE", help="the configuration (default: the one that the App names)")
    parser.add_argument("--workers", type=_processes, default=1, metavar="N", help="so many processes (default 1)")
    parser.add_argument(
        "--reload", action="store_true", help="start again when a source file below this folder changes"
    )
    parser.add_argument(
        "--shutdown-s", type=_seconds, default=40.0, metavar="S", help="kill what has not stopped by then (default 40)"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="for stderr")
    parser.add_argument("--process", type=_processes, help=SUPPRESS)


def _processes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise ArgumentTypeError(f"{text}: expected 1 to {_MOST}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ArgumentTypeError(f"{text}: expected seconds above 0")
    return seconds


def run(arguments: Namespace) -> int:
    """Runs it; the exit code."""
    from tm import ConfigurationError  # noqa: PLC0415 — `xabridge --help` need not load a manager
    from tm.log import LogError  # noqa: PLC0415 — as above

    lines = LogLines(arguments)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 — as the interpreter has it for a script
    try:
        if arguments.process is None:
            advice = advice_for(arguments.workers)
            if advice:
                logger.info(advice)
            if arguments.workers > 1 or arguments.reload:
                return _supervise(arguments)
        return _work(arguments, lines)
    except (ConfigurationError, LogError) as error:
        lines.complain(str(error))
        return Exit.USAGE


class LogLines:
    """The log of this process on stderr, in the format that the configuration asks for: `--config`, or else the file
    that an App reads by default, until the App is known."""

    def __init__(self, arguments: Namespace) -> None:
        self._process: int | None = arguments.process
        self._format = self._first_format(arguments.config)
        self._handler = write_lines(self._format, arguments.log_level, named=True, process=self._process)

    def _first_format(self, config: str | None) -> str:
        from tm import ConfigurationError, configuration_from  # noqa: PLC0415 — as above

        try:
            return configuration_from(config or DEFAULT_FILE, None).log_format
        except ConfigurationError:  # it is reported by the process that needs it
            return TEXT

    def change(self, log_format: str) -> None:
        """Goes on in this format."""
        self._format = log_format
        self._handler.setFormatter(format_of(log_format, named=True, process=self._process))

    def complain(self, words: str) -> None:
        """Says why the command ends, in one line."""
        if self._format == TEXT:
            sys.stderr.write(f"xabridge run: {escaped(masked(words))}\n")
        else:
            logger.error("%s", words)


def advice_for(processes: int) -> str:
    """What to say where there are more processors than processes, of which each keeps one busy at most; or nothing."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes >= processors:
        return ""
    running = "1 process keeps 1" if processes == 1 else f"{processes} processes keep {processes}"
    return (
        f"{running} of {processors} processors busy at most: if messages wait while this is so, "
        f"--workers {processors} handles more of them"
    )


def _configuration(app: App, arguments: Namespace) -> Configuration:
    from tm import Configuration, configuration_from  # noqa: PLC0415 — as above

    given = arguments.config or app.configuration
    return given if isinstance(given, Configuration) else configuration_from(given)


def _work(arguments: Namespace, lines: LogLines) -> int:
    """This process is one that does the work. Process 1 finishes what processes have left in doubt that are not started
    any more: as long as it runs, because their resources may be away now. LogError: its log can't be used, and won't be
    able to be if it is started again; what may pass by itself is logged."""
    from tm import ConfigurationError, TransactionManager  # noqa: PLC0415 — as above
    from tm.log import LogError, LogFull, LogStopped  # noqa: PLC0415 — as above
    from xabridge.app.app import find_app  # noqa: PLC0415 — as above
    from xabridge.app.supervisor import configuration_of, configuration_to_recover, left_behind  # noqa: PLC0415

    number = arguments.process or 1
    if arguments.process is not None:
        threading.Thread(target=_stop_with_the_supervisor, name="xabridge-supervisor", daemon=True).start()
    try:
        app = find_app(arguments.app)
    except ConfigurationError:
        raise
    except Exception:
        logger.exception("%s can't be loaded", arguments.app)
        return Exit.USAGE
    configuration = _configuration(app, arguments)
    lines.change(configuration.log_format)
    own = app.configuration = configuration_of(configuration, number)
    has_started = False

    def started() -> None:
        nonlocal has_started
        has_started = True
        queues = ", ".join(declared.settings.queue for declared in app.consumers) or "no queue"
        logger.info("%s works as node %s, for %s", arguments.app, own.node, queues)

    try:
        with ExitStack() as open_beside:
            for gone in left_behind(configuration, arguments.workers) if number == 1 else ():
                logger.warning("process %d has a log, and is not among %d: recovering", gone, arguments.workers)
                open_beside.enter_context(TransactionManager.from_config(configuration_to_recover(configuration, gone)))
            app.run(started)
            logger.info("%s has stopped", arguments.app)
    except ConfigurationError:
        raise
    except Exception as error:
        if isinstance(error, LogError) and not has_started and not isinstance(error, LogFull | LogStopped):
            raise
        logger.exception("%s failed", arguments.app)
        return Exit.FAILED
    return Exit.DONE


def _stop_with_the_supervisor() -> None:
    """The supervisor keeps the other end of stdin open as long as it lives."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _supervise(arguments: Namespace) -> int:
    from xabridge.app.supervisor import Supervisor  # noqa: PLC0415 — as above

    command = [sys.executable, "-m", "xabridge.cli", "run", arguments.app, "--workers", str(arguments.workers)]
    command += ["--log-level", arguments.log_level]
    if arguments.config:
        command += ["--config", arguments.config]
    watched = Path.cwd() if arguments.reload else None
    return Supervisor(command, arguments.workers, arguments.shutdown_s, watched).run()
