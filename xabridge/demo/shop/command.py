"""`xabridge shop`: the demo's shop in pieces, for containers: a worker, and a generator that also checks."""

from __future__ import annotations

import logging
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from tm import Action, TransactionManager, configuration_from
from tm.resources import ResourceConfig
from xa.telemetry.log_lines import write_lines
from xabridge.demo.display import Display
from xabridge.demo.shop import worker
from xabridge.demo.shop.audit import Audit, Figures
from xabridge.demo.shop.orders import TABLE, engine_of, open_books, orders_from, place
from xabridge.demo.shop.shop import BROKER, DATABASE, Shop

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from xabridge.demo.shop.orders import Order

SUMMARY: Final = "run one part of the demo's shop: a worker or a generator"
LOOK_S: Final = 0.5
EXIT_WRONG: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    work = parts.add_parser("worker", help="turn orders into rows and invoices, until SIGTERM")
    worker.add_arguments(work)
    work.set_defaults(part_run=_work)
    generate = parts.add_parser("generate", help="place orders, wait until they are handled, and compare")
    generate.add_argument("--config", type=Path, default=Path("xabridge.toml"), metavar="FILE", help="xabridge.toml")
    generate.add_argument("--orders", type=int, default=2000, metavar="N", help="how many orders (default 2000)")
    generate.add_argument("--seed", type=int, default=1, metavar="N", help="which orders (default 1)")
    generate.add_argument("--wait", type=float, default=600.0, metavar="S", help="for so long at most (default 600)")
    generate.set_defaults(part_run=_generate)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.part_run(arguments))


def shop_of(config: Path) -> Shop:
    """The place of a configuration's shop."""
    resources = configuration_from(config).resources
    broker, database = (
        found if isinstance(found, ResourceConfig) else ResourceConfig(found)
        for found in (resources[BROKER], resources[DATABASE])
    )
    return Shop(broker.url, database.url, database.mode)


def _work(arguments: argparse.Namespace) -> int:
    write_lines(configuration_from(arguments.config).log_format, logging.INFO, named=True)
    open_books(shop_of(arguments.config).database)
    return worker.run(arguments)


def _generate(arguments: argparse.Namespace) -> int:
    shop = shop_of(arguments.config)
    open_books(shop.database)

    def orders() -> Iterator[Order]:
        return islice(orders_from(arguments.seed), arguments.orders)

    with TransactionManager.from_config(arguments.config) as manager:
        audit = Audit(shop, manager)
        if not audit.began():
            place(manager, orders())
        display = Display(live=sys.stdout.isatty(), quiet=False)
        deadline = time.monotonic() + arguments.wait
        while (figures := _look(shop, manager)).rows < arguments.orders or figures.in_doubt:
            display.show(figures.rows / arguments.orders, figures.text(arguments.orders))
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_S)
        display.show(figures.rows / arguments.orders, figures.text(arguments.orders))
        display.keep()
        proof = audit.prove(orders(), figures.in_doubt)
    verdict = "every order once as a row and once as an invoice" if proof.exact else "NOT EXACT"
    print(f"{verdict}: {proof.figures()}", flush=True)
    return 0 if proof.exact else EXIT_WRONG


def _look(shop: Shop, manager: TransactionManager) -> Figures:
    """How many rows there are, and branches in doubt; an invoice is produced with its row."""
    engine = engine_of(shop.database)
    try:
        with engine.connect() as connection:
            rows = connection.scalar(select(func.count()).select_from(TABLE)) or 0
    finally:
        engine.dispose()
    left = [finding for finding in manager.recover().findings if finding.action not in _OVER]
    return Figures(rows=rows, invoices=rows, in_doubt=len(left), whole=True)


_OVER: Final = frozenset({Action.COMMITTED, Action.ROLLED_BACK, Action.FORGOTTEN, Action.NOT_THERE})
