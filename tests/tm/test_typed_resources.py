"""These tests cover a subclass of Transaction that declares the types of its resources: its behaviour, and what type
checkers infer.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import pytest

from tests.tm.shop import NODE, Shop
from tm import ConfigurationError, ProtocolMisuse, Transaction, TransactionManager
from tm.log import FileLog
from xabridge.testing.reference.driver import ReferenceSession

ROOT = Path(__file__).parents[2]
USERS = ROOT / "tests" / "user"
WRONG = (
    ("tx.shop.execute(NUMBER).scalar_one()", "tx.shop.nothing(NUMBER).scalar_one()"),
    ("\n        shop.orm.flush()", "\n        shop.nothing.flush()"),
    ("await tx.broker.aio.receive(", "await tx.broker.aio.nothing("),
    ("len(manager.get_transaction().broker.receive_batch", "len(manager.get_transaction().nothing.receive_batch"),
    ("last: int = tx", "last: int = tx.broken or tx"),
)
"""Mistakes that are seen only by who knows the types of the resources."""


class Both(Transaction):
    """Has the resources of the tests."""

    a: ReferenceSession
    b: ReferenceSession


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, "abc")
    yield shop
    shop.close()


def manager_of(shop: Shop, transaction: type[Transaction]) -> TransactionManager:
    return shop.open(transaction=transaction)


def test_an_annotated_resource_is_enlisted_when_it_is_first_used(shop: Shop) -> None:
    with manager_of(shop, Both).begin() as tx:
        assert isinstance(tx, Both)
        assert not tx.resources
        tx.a.write("k", 1)
        assert list(tx.resources) == ["a"]
        assert tx.a is tx["a"]
        tx.b.write("k", 1)
        tx["c"].write("k", 1)
    assert shop.values() == {"a": 1, "b": 1, "c": 1}


def test_a_task_enlists_by_the_attribute_and_has_its_type(shop: Shop) -> None:
    async def write() -> None:
        async with shop.open(transaction=Both).begin() as tx:
            a = await tx.aenlist(Both.a)
            assert_type(a, ReferenceSession)
            assert a is tx["a"]
            a.write("k", 1)
            (await tx.aenlist("b")).write("k", 1)
            assert list(tx.resources) == ["a", "b"]

    asyncio.run(write())
    assert shop.values() == {"a": 1, "b": 1, "c": None}


def test_the_manager_knows_its_class(tmp_path: Path) -> None:
    with TransactionManager(NODE, FileLog(tmp_path / "log", NODE), background=False) as plain:
        assert_type(plain, TransactionManager[Transaction])
    shop = Shop(tmp_path / "shop", "ab")
    resources = {name: shop.config(name) for name in "ab"}
    log = FileLog(tmp_path / "log", NODE)
    with TransactionManager(NODE, log, resources, transaction=Both, background=False) as manager:
        assert_type(manager, TransactionManager[Both])
        with manager.begin() as tx:
            assert_type(tx, Both)
            assert_type(manager.get_transaction(), Both)
            assert manager.get_transaction() is tx
            suspended = manager.suspend()
            assert_type(suspended, Both)
            manager.resume(suspended)


def test_a_resource_that_is_not_configured_is_named(shop: Shop) -> None:
    class Others(Transaction):
        warehouse: ReferenceSession

    with pytest.raises(ConfigurationError, match=r"Others\.warehouse: no resource of that name .*configured: a, b, c"):
        manager_of(shop, Others)


def test_what_a_transaction_has_itself_can_not_be_annotated() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.status: a transaction has a status of its own; use tx\['status'\]"):

        class Wrong(Transaction):
            status: ReferenceSession  # type: ignore[assignment]


def test_an_attribute_with_a_value_is_not_a_resource(shop: Shop) -> None:
    class WithValue(Transaction):
        attempts: int = 0
        a: ReferenceSession

    assert WithValue.annotated == ("a",)
    with manager_of(shop, WithValue).begin() as tx:
        assert isinstance(tx, WithValue)
        tx.attempts += 1
        with pytest.raises(AttributeError):
            tx.a = tx.a  # it is told by the manager
    with pytest.raises(ProtocolMisuse):
        tx.a  # noqa: B018 — it is over


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", ["mypy", pytest.param("pyright", marks=pytest.mark.long)])
def test_type_checkers_know_the_resources(checker: str, tmp_path: Path) -> None:
    if checker == "pyright" and shutil.which("node") is None:
        pytest.skip("pyright needs node, which is not installed")
    options = {
        "mypy": (
            f"--config-file={ROOT}/pyproject.toml",  # strict, and what `make types` has kept holds here too
            f"--cache-dir={os.environ.get('MYPY_CACHE_DIR', ROOT / '.mypy_cache')}",
            "--python-executable",
            sys.executable,
        ),
        "pyright": ("--pythonpath", sys.executable),
    }
    right = (USERS / "typed_resources.py").read_text(encoding="utf-8")
    wrong = right
    for good, bad in WRONG:
        assert good in wrong
        wrong = wrong.replace(good, bad)

    (tmp_path / "right.py").write_text(right, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    command = [sys.executable, "-m", checker, *options[checker], "right.py", "wrong.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout.count("right.py:") == 0, found.stdout + found.stderr
    assert found.stdout.count("wrong.py:") == len(WRONG), found.stdout + found.stderr
