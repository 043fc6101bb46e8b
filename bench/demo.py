"""`xabridge demo`: orders, rows and invoices in global transactions, while the manager is killed in the middle.

Two reference resource managers live in this process: `broker`, with orders and invoices, and `shop`, with rows.
A child process runs the transaction manager over them with a decision log on disk: each order is consumed, its row
written and its invoice produced in one global transaction. The child is killed (SIGKILL) and started again; it
recovers, and goes on. At the end everything is counted.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xa.reference import ReferenceStore
from xa.reference.remote import ReferenceServer, RemoteReference

if TYPE_CHECKING:
    import argparse

SUMMARY: Final = "orders, rows and invoices in one transaction each, with the manager killed in the middle"
BAR: Final = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """As `tm.cli.main.Command` says."""
    parser.add_argument("--orders", type=int, default=2000, metavar="N", help="how many orders (default 2000)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="threads that handle orders (default 4)")
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="how often the manager is killed (default 3)")
    parser.add_argument("--no-kill", action="store_true", help="nobody is killed")
    parser.add_argument("--plain", action="store_true", help="lines for a log instead of a progress bar")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """As `tm.cli.main.Command` says."""
    kills = 0 if arguments.no_kill else arguments.kills
    quiet = arguments.json
    live = not (arguments.plain or quiet) and sys.stdout.isatty()
    with tempfile.TemporaryDirectory(prefix="xabridge-demo-") as folder:
        result = Demo(Path(folder), arguments.orders, arguments.workers, kills, live=live, quiet=quiet).run()
    if arguments.json:
        print(json.dumps(result))
    return 0 if result["exact"] else 1


class Demo:
    """One run."""

    def __init__(self, folder: Path, orders: int, workers: int, kills: int, *, live: bool, quiet: bool) -> None:
        self._folder = folder
        self._orders = orders
        self._workers = workers
        self._kill_at = [orders * (number + 1) // (kills + 1) for number in range(kills)]
        self._live = live
        self._quiet = quiet
        self._began = time.monotonic()
        self._stores = {"broker": ReferenceStore("broker"), "shop": ReferenceStore("shop")}

    def run(self) -> dict[str, Any]:
        """Starts the child as often as needed; the figures of the end."""
        self._say(f"xabridge demo · two-phase · {self._workers} workers · {self._orders:,} orders")
        authkey = secrets.token_bytes(32)
        address = str(self._folder / "reference")
        server = ReferenceServer(self._stores, address, authkey)
        kills = 0
        while True:
            child = self._start(address, authkey)
            killed = self._watch(child)
            if not killed:
                break
            kills += 1
            doubt = sum(len(store.in_doubt) for store in self._stores.values())
            self._say(f"{self._at():6.1f} s    kill -9 manager: {doubt} prepared branches are in doubt")
        server.close()
        return self._result(child.returncode, kills)

    def _start(self, address: str, authkey: bytes) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bench.demo", address, str(self._folder / "log"), str(self._orders)]
        environment = {**os.environ, "XABRIDGE_DEMO_KEY": authkey.hex()}
        return subprocess.Popen([*command, str(self._workers)], env=environment, stdout=self._output())  # noqa: S603

    def _output(self) -> int | None:
        return subprocess.DEVNULL if self._quiet else None

    def _watch(self, child: subprocess.Popen[bytes]) -> bool:
        """Draws until the child ends, by itself or killed; whether it was killed."""
        wake = threading.Event()
        while child.poll() is None:
            rows = self._draw()
            if self._kill_at and rows >= self._kill_at[0]:
                self._kill_at.pop(0)
                child.send_signal(signal.SIGKILL)
                child.wait()
                self._draw(end="\n")
                return True
            wake.wait(0.02)
        self._draw(end="\n")
        return False

    def _draw(self, end: str = "\r") -> int:
        rows = sum(key.startswith("row/") for key in self._stores["shop"].data)
        if self._live:
            broker = self._stores["broker"].data
            invoices = sum(key.startswith("invoice/") for key in broker)
            doubt = sum(len(store.in_doubt) for store in self._stores.values())
            done = BAR * rows // self._orders
            bar = "█" * done + "░" * (BAR - done)
            line = f"  orders    {bar}  {rows:,} / {self._orders:,}      invoices {invoices:,}   in doubt {doubt}"
            print(f"\x1b[2K{line}", end=end, flush=True)
        return rows

    def _result(self, code: int, kills: int) -> dict[str, Any]:
        broker, shop = self._stores["broker"].data, self._stores["shop"].data
        consumed = {key.partition("/")[2]: value for key, value in broker.items() if key.startswith("order/")}
        invoices = {key.partition("/")[2]: value for key, value in broker.items() if key.startswith("invoice/")}
        rows = {key.partition("/")[2]: value for key, value in shop.items()}
        doubt = sum(len(store.in_doubt) for store in self._stores.values())
        sums = {_checksum(each) for each in (consumed, invoices, rows)}
        once = all(value == 1 for each in (consumed, invoices, rows) for value in each.values())
        exact = code == 0 and len(rows) == self._orders and len(sums) == 1 and once and doubt == 0
        seconds = self._at()
        if exact:
            self._say("  every order once as a row and once as an invoice: ", end="")
            self._say(f"{len(consumed):,} = {len(rows):,} = {len(invoices):,}, checksums equal, nothing in doubt")
        else:
            self._say(f"  NOT EXACT: {len(consumed):,} orders, {len(rows):,} rows, ", end="")
            self._say(f"{len(invoices):,} invoices, {doubt} branches in doubt")
        self._say(f"  faults: {kills} × kill -9 manager · {self._orders / seconds:,.0f} tx/s")
        self._say("  next: README.md for the library, docs/architecture.md for how it works")
        return {
            "exact": exact,
            "orders": len(consumed),
            "rows": len(rows),
            "invoices": len(invoices),
            "in_doubt": doubt,
            "kills": kills,
            "seconds": round(seconds, 2),
        }

    def _at(self) -> float:
        return time.monotonic() - self._began

    def _say(self, text: str, end: str = "\n") -> None:
        if not self._quiet:
            print(text, end=end, flush=True)


def _checksum(entries: dict[str, Any]) -> int:
    return zlib.crc32("\n".join(sorted(entries)).encode())


# --- the child: the application with its transaction manager ----------------------------------------------------
def child(address: str, log: str, orders: int, workers: int) -> int:
    """Handles every order that is not consumed yet."""
    from tm import ResourceConfig, TransactionManager  # noqa: PLC0415 — the parent needs no manager

    authkey = bytes.fromhex(os.environ["XABRIDGE_DEMO_KEY"])
    resources = {
        name: ResourceConfig(f"reference://{name}", factory=lambda r, n=name: RemoteReference(address, authkey, n, r))
        for name in ("broker", "shop")
    }
    with TransactionManager("demo", f"file://{log}", resources) as manager:
        report = manager.last_report
        if report is not None and report.findings:
            committed = sum(finding.action.value == "committed" for finding in report.findings)
            rolled_back = sum(finding.action.value == "rolled back" for finding in report.findings)
            print(f"            recovery: {committed} branches committed (decided), {rolled_back} rolled back")
        consumed = RemoteReference(address, authkey, "broker").ask("data")
        left = [number for number in range(orders) if f"order/{number}" not in consumed]
        cursor = iter(left)
        lock = threading.Lock()

        @manager.transactional(retries=5)
        def handle_order(number: int) -> None:
            broker, shop = manager["broker"], manager["shop"]
            broker.write(f"order/{number}", (broker.read(f"order/{number}") or 0) + 1)
            shop.write(f"row/{number}", (shop.read(f"row/{number}") or 0) + 1)
            broker.write(f"invoice/{number}", (broker.read(f"invoice/{number}") or 0) + 1)

        def handle_orders() -> None:
            while True:
                with lock:
                    number = next(cursor, None)
                if number is None:
                    return
                handle_order(number)

        threads = [threading.Thread(target=handle_orders) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(child(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
