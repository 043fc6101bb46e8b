"""This process leaves transactions in doubt in the files that are kept.

    python -m tests.kept.processes KIND FOLDER BROKER WAREHOUSE

KIND is where decisions live: `file` and `sql` are logs in FOLDER, `postgres` is one in PostgreSQL, `broker` lets the
broker decide, and `database` a database in PostgreSQL, which has an outbox and an inbox as well. Each transaction takes
an order from the broker and sends an invoice there, and a parcel to the warehouse. The first one is prepared, and does
not come to its decision. The second one is decided, and then the process kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from rm_amqp import AmqpResource, DecidingBroker, Message
from rm_db import DecidingDatabase
from tm import ResourceConfig, TransactionManager
from tm.log import FileLog
from tm.log.sql import SqlLog
from xabridge.outbox import Inbox, Outbox

KINDS = ("file", "sql", "broker", "postgres", "database")
DATABASE = "XABRIDGE_KEPT_DATABASE"
"""The environment variable with the URL of the PostgreSQL that has the log of one kind, and decides in another."""
UNDECIDED, DECIDED = 2, 1


def manager(kind: str, folder: Path, broker: str, warehouse: str) -> TransactionManager:
    """The transaction manager of a kind, in the files of `folder`."""
    log = {
        "file": f"file://{folder}/log",
        "sql": f"sqlite:///{folder}/log.db",
        "broker": None,
        "postgres": os.environ.get(DATABASE),
        "database": None,
    }[kind]
    first: str | ResourceConfig = ResourceConfig(broker, mode="decider") if kind == "broker" else broker
    resources: dict[str, str | ResourceConfig] = {"broker": first, "warehouse": warehouse}
    if kind == "database":
        resources["shop"] = ResourceConfig(os.environ[DATABASE], mode="decider")
    return TransactionManager(f"kept-{kind}", log, resources, background=False)


def die(*_: Any, **__: Any) -> None:
    """kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def work(tm: TransactionManager, kind: str, number: int) -> None:
    """One transaction."""
    with tm.begin() as tx:
        if kind == "database":
            assert Inbox("kept").is_new(tx["shop"], str(number))
            Outbox().put(tx["shop"], "orders", Message(body=number))
        order = tx["broker"].receive(f"orders-{kind}", timeout_s=10)
        assert order.body == number
        tx["broker"].send(f"invoices-{kind}", Message(body=order.body))
        tx["warehouse"].send(f"parcels-{kind}", Message(body=order.body))


def main(kind: str, folder: str, broker: str, warehouse: str) -> None:
    """Works until it dies."""
    places = (FileLog, SqlLog, DecidingBroker, SqlLog, DecidingDatabase)
    deciding: Any = dict(zip(KINDS, places, strict=True))[kind]
    decide = deciding.decide
    prepared = threading.Event()

    def decide_or_wait(*arguments: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return decide(*arguments)
        prepared.set()
        return threading.Event().wait()

    deciding.decide = decide_or_wait
    AmqpResource.commit = die  # type: ignore[method-assign, assignment]
    tm = manager(kind, Path(folder), broker, warehouse)
    threading.Thread(target=work, args=(tm, kind, UNDECIDED), daemon=True).start()
    assert prepared.wait(60)
    work(tm, kind, DECIDED)
    raise AssertionError("it did not die")


if __name__ == "__main__":
    main(*sys.argv[1:])
