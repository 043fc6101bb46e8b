"""These tests check that each of the import contracts of pyproject.toml notices a planted violation. `make layers`
checks that they hold.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
PACKAGES: list[str] = SETTINGS["root_packages"]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

VIOLATIONS = {
    # contract → module that is planted (or package, to which the import is added), and what it imports
    "contract": ("xa.planted", "tm"),
    "sql": ("xa.planted", "xa.sql.errors"),
    "layers": ("rm_db.planted", "tm"),
    "openwire": ("rm_openwire.planted", "tm"),
    "no-amqp": ("tm.planted", "dtx.protocol"),
    "no-broker": ("rm_amqp.planted", "dtx.broker"),
    "dtx": ("dtx.protocol.planted", "dtx.store"),
    "tm": ("tm.recovery.planted", "tm.manager"),
    "broker": ("dtx.broker.queues.planted", "dtx.broker.container"),
    "pyspark": ("tm.planted", "pyspark"),
    "core": ("xabridge.pipeline.core.planted", "pyarrow"),
    "proton-once": ("rm_amqp.planted", "proton"),
    "proton": ("dtx.store.planted", "proton"),
    "proton-above": ("xabridge.demo.planted", "proton"),
    "core-and-parts": ("tm.planted", "rm_delta"),
    "public-names": ("xabridge", "xabridge.cli.main"),
    "amqp010": ("rm_amqp.planted", "rm_amqp.amqp010.settings"),
    "mariadb": ("rm_db.postgres.planted", "rm_db.mariadb.database"),
    "parts": ("xabridge.outbox.planted", "xabridge.testing.ports"),
    "xabridge": ("xabridge.operations.planted", "xabridge.cli.main"),
}


def plant(tree: Path, module: str, imported: str) -> None:
    path = tree / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    with path.open("a") as file:
        file.write(f"import {imported}\n")


def numbered(number: int, module: str) -> str:
    """Each planted module has a name of its own."""
    return f"{module}{number}" if module.endswith("planted") else module


def test_every_contract_has_a_violation_here() -> None:
    assert sorted(contract["id"] for contract in SETTINGS["contracts"]) == sorted(VIOLATIONS)


@pytest.mark.slow  # it reads every module
def test_each_violation_is_caught_by_its_contract(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    for number, (module, imported) in enumerate(VIOLATIONS.values()):
        plant(tmp_path, numbered(number, module), imported)
    plant(tmp_path, "xa.detour", "dtx.protocol")
    plant(tmp_path, "tm.planted", "xa.detour")
    command = [str(LINT_IMPORTS), "--no-cache", "--no-logo"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout
    assert f"Contracts: 0 kept, {len(VIOLATIONS)} broken." in result.stdout
    said = " ".join(result.stdout.partition("Broken contracts")[2].split())
    names = {contract["id"]: contract["name"] for contract in SETTINGS["contracts"]}
    sections = dict(zip(names, _sections(said, list(names.values())), strict=True))
    for number, (contract, (module, imported)) in enumerate(VIOLATIONS.items()):
        assert f"{numbered(number, module)} -> {imported}" in sections[contract], contract
    assert "tm.planted -> xa.detour" in sections["no-amqp"], "by way of another module"


def _sections(said: str, names: list[str]) -> list[str]:
    """What is said of each contract: its name is underlined."""
    begins = [said.index(f" {name} ---") for name in names]
    return [said[begin:end] for begin, end in zip(begins, [*begins[1:], len(said)], strict=True)]


def test_every_package_is_watched() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools"}
    assert found == set(PACKAGES)
