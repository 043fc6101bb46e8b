"""These tests run the core without its parts: the folders of a few parts at a time are hidden from a process, and then
those of all. What is hidden can't be imported, as if it were not there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = [
    "dtx.broker", "dtx.store", "rm_amqp.amqp010", "rm_db.mariadb", "rm_delta", "rm_openwire", "xabridge.cli",
    "xabridge.console", "xabridge.demo", "xabridge.frameworks", "xabridge.node", "xabridge.operations",
    "xabridge.outbox", "xabridge.pipeline", "xabridge.testing",
]  # fmt: skip
CORE = ["xa", "tm", "rm_amqp", "rm_db", "dtx/amqp", "dtx/protocol", "xabridge/app"]
OF_MARIADB = {
    "rm_db.sessions.greenlet_pymysql", "rm_db.sessions.mariadb", "rm_db.sessions.mariadb_access",
    "rm_db.sessions.pymysql_connection",
}  # fmt: skip
"""They serve sessions of MariaDB only, and are loaded by `rm_db.mariadb`."""

PROGRAM = '''
import sys, tempfile
import sqlalchemy


class Hidden:
    """Refuses the imports of these packages."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in self.packages):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)
        return None


def public_names(hidden):
    import rm_amqp, rm_db, tm, xa, xabridge
    for package in (xa, tm, rm_amqp, rm_db, xabridge):
        for name in package.__all__:
            if not ("rm_db.mariadb" in hidden and name.startswith("Maria")):
                getattr(package, name)


def a_transaction():
    from xabridge import ResourceConfig, TransactionManager
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/shop.db"
        shop = ResourceConfig(f"sqlite:///{file}", mode="decider")
        with TransactionManager("parts-1", None, {"shop": shop}) as manager:
            with manager.begin() as tx:
                tx["shop"].exec_driver_sql("CREATE TABLE orders (number INTEGER)")
                tx["shop"].exec_driver_sql("INSERT INTO orders VALUES (7)")
        with sqlalchemy.create_engine(f"sqlite:///{file}").connect() as reader:
            assert reader.exec_driver_sql("SELECT number FROM orders").scalars().all() == [7]


def help_of_the_command():
    from xabridge.cli.main import main
    try:
        main(["--help"])
    except SystemExit as end:
        assert end.code == 0, end.code


hidden, modules = [one.split() for one in sys.argv[1:]]
sys.meta_path.insert(0, Hidden(hidden))
for module in modules:
    __import__(module)
public_names(hidden)
a_transaction()
if "xabridge.cli" not in hidden:
    help_of_the_command()
'''


def run_without(parts: list[str], modules: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, " ".join(parts), " ".join(modules)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ("COMMAND" in done.stdout) == ("xabridge.cli" not in parts)


@pytest.mark.slow  # each process imports the core
@pytest.mark.parametrize("number", range(4))
def test_the_core_runs_without_a_few_parts(number: int) -> None:
    run_without(PARTS[number::4], [])


@pytest.mark.slow  # as above
def test_every_module_of_the_core_is_imported_without_all_of_them() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in CORE
        for path in sorted((ROOT / package).rglob("*.py"))
    ]
    parts = {part for part in PARTS if part.startswith("rm_")}
    core = [one for one in modules if not any(f"{one}.".startswith(f"{part}.") for part in parts | OF_MARIADB)]
    run_without(PARTS, core)


@pytest.mark.slow  # as above
def test_an_import_of_a_hidden_part_is_found() -> None:
    with pytest.raises(AssertionError, match=r"dtx\.store is hidden"):
        run_without(["dtx.store"], ["dtx.store.memory"])


def test_the_contracts_name_the_same_parts() -> None:
    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    parts = contracts.partition('id = "parts"')[2].partition("modules = [")[2].partition("]")[0]
    assert sorted(part.strip(' \n"') for part in parts.split(",") if part.strip()) == sorted(PARTS)
    assert all((ROOT / Path(*part.split("."))).exists() or part == "xabridge.node" for part in PARTS)
