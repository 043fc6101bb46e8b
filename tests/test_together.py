"""These tests run the transaction manager with the database resource managers that its configuration names by URL
scheme.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tm import ResourceConfig, TransactionManager

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import Postgres
    from tm import Transaction

pytestmark = pytest.mark.slow

INSERT = text("insert into orders (id) values (:id)")


def _write(transaction: Transaction, name: str, number: int) -> None:
    transaction[name].execute(INSERT, {"id": number})


def _ids(manager: TransactionManager, name: str) -> list[int]:
    with manager.begin() as transaction:
        return [row.id for row in transaction[name].execute(text("select id from orders order by id"))]


def _table(manager: TransactionManager, name: str) -> None:
    with manager.begin() as transaction:
        transaction[name].execute(text("create table orders (id integer primary key)"))


def test_two_postgres_databases_in_two_phases(postgres: Postgres, tmp_path: Path) -> None:
    one, two = postgres.create_database(), postgres.create_database()
    with TransactionManager("node-1", f"file://{tmp_path}/log", {"one": one, "two": two}) as manager:
        _table(manager, "one")
        _table(manager, "two")
        with manager.begin() as transaction:
            _write(transaction, "one", 1)
            _write(transaction, "two", 1)
        with pytest.raises(LookupError), manager.begin() as transaction:
            _write(transaction, "one", 2)
            _write(transaction, "two", 2)
            raise LookupError
        assert _ids(manager, "one") == _ids(manager, "two") == [1]


def test_a_file_decides_for_postgres(postgres: Postgres, tmp_path: Path) -> None:
    resources = {
        "shop": ResourceConfig(postgres.create_database()),
        "ledger": ResourceConfig(f"sqlite:///{tmp_path}/ledger.db", "decider"),
    }
    with TransactionManager("node-1", resources=resources) as manager:
        _table(manager, "shop")
        _table(manager, "ledger")
        with manager.begin() as transaction:
            _write(transaction, "ledger", 1)
            _write(transaction, "shop", 1)
        assert _ids(manager, "ledger") == _ids(manager, "shop") == [1]
        assert manager.recover().clean
