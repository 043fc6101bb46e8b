"""`xabridge demo` turns orders into rows and invoices, and kills the manager, the broker and the database meanwhile.

In a scratch folder: the embedded broker, an embedded PostgreSQL, orders in a queue, and a worker process. The worker
consumes an order, writes its row and produces its invoice in one global transaction. One after the other, worker,
broker and database are killed (SIGKILL) and started again. At the end orders, rows and invoices are compared.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import sysconfig
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tm import TransactionManager
from xabridge.console.command import missing
from xabridge.demo.display import Display
from xabridge.demo.shop import Audit, EmbeddedServers, PostgresMissing, ShopProbe, WorkerProcess, orders_from, place
from xabridge.testing.ports import free_port

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from xabridge.demo.shop import Figures, Order
    from xabridge.demo.shop.audit import ShopAudit

NODE: Final = "demo-worker"
TOKEN: Final = "XABRIDGE_DEMO_TOKEN"  # noqa: S105 — the name of a variable
SUMMARY: Final = "handle orders in one transaction each, while manager, broker and database are killed once"
ORDERS: Final = 2000
ORDERS_PER_FAULT: Final = 20
"""Of a game day."""
SEED: Final = 1
LOOK_S: Final = 0.1
STUCK_S: Final = 60.0
"""When nothing has moved for so long, something is wrong."""
MARK: Final = ".xabridge-demo"
EXIT_WRONG: Final = 1
EXIT_USAGE: Final = 2
GUIDES: Final = Path(__file__).parents[2] / "docs", Path(sysconfig.get_path("data")) / "share" / "doc" / "xabridge"
"""Where the guides are: in a clone, and where it is installed."""
NEXT: Final = (
    "next: {}/start.md, the same with your own broker and database;",
    "      {}/guarantees.md, what is promised, and what it costs",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--orders", type=int, metavar="N", help=f"how many orders (default {ORDERS}; {ORDERS_PER_FAULT} per fault)"
    )
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="handlers at a time (default 4)")
    parser.add_argument(
        "--mode",
        choices=["two-phase", "decider"],
        default="two-phase",
        help="how PostgreSQL takes part: prepared, or as the one that decides (default two-phase)",
    )
    parser.add_argument("--no-kill", action="store_true", help="kill nothing")

    parser.add_argument(
        "--game-day", action="store_true", help="break one thing after the other, and wait until you have repaired it"
    )
    parser.add_argument("--auto", action="store_true", help="with --game-day: take the steps of the guide by itself")
    parser.add_argument("--plain", action="store_true", help="print lines instead of a live display")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object, nothing else on stdout")
    parser.add_argument(
        "--console", type=int, nargs="?", const=8161, metavar="PORT", help="watch it in a browser (default port 8161)"
    )
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="the scratch folder (default .demo)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.orders is None:
        arguments.orders = ORDERS_PER_FAULT if arguments.game_day else ORDERS
    if wrong := _wrong(arguments):
        print(f"xabridge demo: {wrong}", file=sys.stderr)
        return EXIT_USAGE
    display = Display(live=sys.stdout.isatty() and not arguments.plain and not arguments.json, quiet=arguments.json)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # stopped or interrupted: nothing is left running

    try:
        with ExitStack() as stack:
            folder = stack.enter_context(scratch(arguments.folder))
            lines = logging.FileHandler(folder / "front.err")  # the broker is gone for a while: that is no news here
            logging.getLogger("xabridge").addHandler(lines)
            stack.callback(lines.close)
            stack.callback(logging.getLogger("xabridge").removeHandler, lines)
            if arguments.game_day:
                result = _play_game_day(folder, arguments, display)
            else:
                result = Demo(folder, arguments, display, stack).run()
    except (PostgresMissing, FolderInUse) as error:
        print(f"xabridge demo: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ModuleNotFoundError as error:
        if arguments.console is None:
            raise
        print(f"xabridge demo --console: {missing(error)}", file=sys.stderr)
        return EXIT_USAGE
    finally:
        display.close()

    if arguments.json:
        print(json.dumps(result))
    return 0 if result["exact"] else EXIT_WRONG


def _wrong(arguments: argparse.Namespace) -> str:
    """What is wrong with the arguments; empty if nothing is."""
    if arguments.orders < 1 or arguments.workers < 1:
        return "--orders and --workers are at least 1"
    if arguments.auto and not arguments.game_day:
        return "--auto is for --game-day"
    if not arguments.game_day:
        return ""
    if arguments.no_kill or arguments.mode == "decider" or arguments.console is not None:
        return "--game-day goes without --no-kill, --mode decider and --console"
    if not arguments.auto and not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "--game-day: not a terminal: pass --auto"
    return "--json needs --auto" if arguments.json and not arguments.auto else ""


def _play_game_day(folder: Path, arguments: argparse.Namespace, display: Display) -> dict[str, Any]:
    """Plays it; the figures of the end."""
    from xabridge.demo.game_day import FAULTS, GameDay, GameSite  # noqa: PLC0415 — of this option only

    where = arguments.folder if arguments.folder.is_absolute() else f"./{arguments.folder}"
    display.say(f"xabridge demo --game-day · a site in {where}")
    display.preparing("starting the broker, PostgreSQL and a node")
    with GameSite(folder) as site:
        return GameDay(site, display, arguments.orders, auto=arguments.auto).play(FAULTS)


class FolderInUse(Exception):
    """The folder has something else in it."""


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """An empty folder, in place of what an earlier demo has left there. No other demo gets it meanwhile."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / MARK).exists():
        raise FolderInUse(f"{folder} is not empty, and no demo's: name another one with --folder")
    with (folder / MARK).open("a") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"another demo runs in {folder}: name another folder with --folder") from None
        for left in folder.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            elif left.name != MARK:
                left.unlink()
        yield folder


class Demo:
    """One run."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, display: Display, stack: ExitStack) -> None:
        self._orders: int = arguments.orders
        self._kill: bool = not arguments.no_kill
        self._display = display
        self._faults: list[str] = []
        where = arguments.folder if arguments.folder.is_absolute() else f"./{arguments.folder}"
        display.say(f"xabridge demo · {arguments.mode} · {arguments.workers} workers · embedded in {where}")
        display.preparing("starting the broker and PostgreSQL")
        self._embedded = EmbeddedServers(folder, prepared_transactions=arguments.mode == "two-phase")
        stack.callback(self._embedded.close)

        self._embedded.open()
        self._shop = self._embedded.shop(arguments.mode)
        self._front = stack.enter_context(
            TransactionManager("demo-front", f"file://{folder}/front", {"broker": self._shop.broker})
        )
        config = self._configured(folder / "worker.toml", folder / "log", arguments.console, stack)
        self._worker = WorkerProcess(config, workers=arguments.workers)
        stack.callback(self._worker.kill)
        self._gauge = ShopProbe(self._shop)
        stack.callback(self._gauge.close)

    def _configured(self, config: Path, log: Path, console: int | None, stack: ExitStack) -> Path:
        """The worker's configuration. With a console the worker tells it of its transactions."""
        if console is None:
            return self._shop.configure(config, NODE, log)
        http = f"127.0.0.1:{free_port()}"
        os.environ[TOKEN] = secrets.token_urlsafe(24)  # the worker, which is started from here, has it too
        stack.callback(os.environ.pop, TOKEN, None)
        self._shop.configure(config, NODE, log, http=http, http_token_env=TOKEN)
        self._serve_console(config, console, http, stack)
        return config

    def _serve_console(self, config: Path, port: int, http: str, stack: ExitStack) -> None:
        """The console of the worker's node, for as long as the demo."""
        from tm.config import configuration_from  # noqa: PLC0415 — only with --console
        from xabridge.console.server import serving  # noqa: PLC0415 — of the extra `console`
        from xabridge.console.settings import WatchedNode, console_settings  # noqa: PLC0415 — as above

        worker = WatchedNode(NODE, f"http://{http}", os.environ[TOKEN])
        settings = replace(console_settings(config, listen=f"127.0.0.1:{port}"), nodes=(worker,))
        try:
            server = stack.enter_context(serving(settings, configuration_from(config)))
        except OSError as error:
            self._display.say(f"no console: port {port} can't be used: {error.strerror or error}")
            return
        self._display.say(f"console: {server.address} (leave name and password empty)")

    def run(self) -> dict[str, Any]:
        """Runs from the first order to the proof; the figures of the end."""
        self._display.preparing(f"placing {self._orders:,} orders")
        place(self._front, self._placed())
        self._display.begin()
        began = time.monotonic()
        self._worker.start()
        figures = self._follow()
        self._worker.stop()
        seconds = time.monotonic() - began
        self._tell_events()

        proof = Audit(self._shop, self._front).prove(self._placed(), self._gauge.look().in_doubt)
        self._show(figures)
        self._display.keep()
        self._tell(proof, seconds)
        return {
            **proof.figures(),
            "faults": self._faults,
            "seconds": round(seconds, 2),
            "tx_per_s": round(self._orders / seconds, 1),
        }

    def _placed(self) -> Iterator[Order]:
        return islice(orders_from(SEED), self._orders)

    def _show(self, figures: Figures) -> None:
        self._display.show(figures.rows / self._orders, figures.text(self._orders))

    def _follow(self) -> Figures:
        """Shows what happens, and kills, until every order is a row and nothing is in doubt."""
        kills = [self._kill_worker, self._kill_broker, self._kill_database] if self._kill else []
        moments = [self._orders * (number + 1) // (len(kills) + 1) for number in range(len(kills))]
        tick, moved, last = threading.Event(), time.monotonic(), self._gauge.look()
        while True:
            figures = self._gauge.look()
            self._tell_events()
            self._show(figures)
            if kills and figures.whole and figures.rows >= moments[0]:
                moments.pop(0)
                kills.pop(0)()

            if figures != last:
                moved, last = time.monotonic(), figures
            done = figures.whole and not figures.waiting and not figures.in_doubt and figures.rows >= self._orders
            if (done and not kills) or time.monotonic() - moved > STUCK_S or not self._worker.running:
                return figures
            tick.wait(LOOK_S)

    # --- faults ---------------------------------------------------------------------------------------------

    def _kill_worker(self) -> None:
        self._worker.kill()
        self._killed("transaction manager")
        found = self._worker.start()
        self._display.event(f"transaction manager back: {_did(found)}")

    def _kill_broker(self) -> None:
        self._embedded.broker.kill()
        self._killed("broker")
        self._embedded.broker.start()
        restored = self._embedded.broker.restored
        self._display.event(f"broker back, {restored} prepared {'branch' if restored == 1 else 'branches'} restored")

    def _kill_database(self) -> None:
        self._embedded.postgres.kill()
        self._killed("postgres")
        self._embedded.postgres.start()
        self._display.event("postgres back")

    def _killed(self, what: str) -> None:
        self._faults.append(what)
        figures = self._gauge.look()
        self._show(figures)
        self._display.event(f"kill -9 {what}")

    def _tell_events(self) -> None:
        for event in self._worker.events():
            if event["event"] == "recovered" and (event["committed"] or event["rolled_back"]):
                self._display.event(f"recovery: {_did(event)}")

    # --- the end --------------------------------------------------------------------------------------------

    def _tell(self, proof: ShopAudit, seconds: float) -> None:
        say = self._display.say
        if proof.exact:
            say("  every order once as a row and once as an invoice:")
            say(
                f"  {proof.orders:,} = {proof.rows:,} = {proof.invoices:,}, checksums equal ({proof.checksums[0]}), "
                "nothing in doubt"
            )
        else:
            say(f"  NOT EXACT: {proof.orders:,} orders, {proof.rows:,} rows, {proof.invoices:,} invoices;")
            say(
                f"  {proof.waiting} waiting, {proof.lost} lost, {proof.duplicated} duplicated, {proof.split} split, "
                f"{proof.in_doubt} in doubt"
            )
            say(f"  what the worker said: {self._worker.errors_at}")

        faults = ", ".join(self._faults)
        faults_in_words = f"{len(self._faults)} × kill -9 ({faults})" if faults else "none"
        say(f"  faults: {faults_in_words}")
        say(f"  {self._orders / seconds:,.0f} transactions/s, outages included")
        guides = next((folder for folder in GUIDES if folder.is_dir()), Path("docs"))
        if guides.is_relative_to(Path.cwd()):
            guides = guides.relative_to(Path.cwd())
        for line in NEXT:
            say(f"  {line.format(guides)}")


def _did(event: dict[str, Any]) -> str:
    parts = []
    if event["committed"]:
        parts.append(f"{event['committed']} committed")
    if event["rolled_back"]:
        parts.append(f"{event['rolled_back']} rolled back")
    return ", ".join(parts) or "nothing was in doubt"
