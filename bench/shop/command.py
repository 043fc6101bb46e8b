"""`xabridge shop`: the demo's shop in pieces, for containers: a worker, and a generator that also checks."""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.display import Display
from bench.shop import worker
from bench.shop.audit import Audit, Gauge
from bench.shop.orders import open_books, orders_from, place
from bench.shop.places import BROKER, DATABASE, Shop
from tm import TransactionManager, configuration_from
from tm.resources import ResourceConfig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from bench.shop.orders import Order

SUMMARY: Final = "the demo's shop in pieces: a worker, a generator"
LOOK_S: Final = 0.5
EXIT_WRONG: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """As `tm.cli.main.Command` says."""
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    work = parts.add_parser("worker", help="turn orders into rows and invoices, until SIGTERM")
    worker.add_arguments(work)
    work.set_defaults(part_run=worker.run)
    generate = parts.add_parser("generate", help="place orders, wait until they are handled, and compare")
    generate.add_argument("--config", type=Path, default=Path("xabridge.toml"), metavar="FILE", help="xabridge.toml")
    generate.add_argument("--orders", type=int, default=2000, metavar="N", help="how many orders (default 2000)")
    generate.add_argument("--seed", type=int, default=1, metavar="N", help="which orders (default 1)")
    generate.add_argument("--wait", type=float, default=600.0, metavar="S", help="for so long at most (default 600)")
    generate.set_defaults(part_run=_generate)


def run(arguments: argparse.Namespace) -> int:
    """As `tm.cli.main.Command` says."""
    return int(arguments.part_run(arguments))


def shop_of(config: Path) -> Shop:
    """Where the shop of a configuration is."""
    resources = configuration_from(config).resources
    broker, database = (
        found if isinstance(found, ResourceConfig) else ResourceConfig(found)
        for found in (resources[BROKER], resources[DATABASE])
    )
    return Shop(broker.url, database.url, database.mode)


def _generate(arguments: argparse.Namespace) -> int:
    shop = shop_of(arguments.config)
    open_books(shop.database)

    def orders() -> Iterator[Order]:
        return islice(orders_from(arguments.seed), arguments.orders)

    with TransactionManager.from_config(arguments.config) as manager:
        audit = Audit(shop, manager)
        if not audit.began():
            place(manager, orders())
        display = Display(arguments.orders, live=sys.stdout.isatty(), quiet=False)
        gauge, deadline = Gauge(shop), time.monotonic() + arguments.wait
        while time.monotonic() < deadline:
            figures = gauge.look()
            display.show(figures)
            if figures.whole and not figures.waiting and not figures.in_doubt and figures.rows >= arguments.orders:
                break
            time.sleep(LOOK_S)
        display.close()
        gauge.close()
        proof = audit.prove(orders())
    verdict = "every order once as a row and once as an invoice" if proof.exact else "NOT EXACT"
    print(f"{verdict}: {proof.figures()}", flush=True)
    return 0 if proof.exact else EXIT_WRONG
