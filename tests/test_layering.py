"""These tests check that the import contracts of pyproject.toml hold, and that each of them notices a planted
violation.
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
    # contract → module that is planted, and what it imports
    "contract": ("xa.planted", "tm"),
    "sql": ("xa.planted", "xa.sql.errors"),
    "layers": ("rm_db.planted", "tm"),
    "openwire": ("rm_openwire.planted", "tm"),
    "no-amqp": ("tm.planted", "dtx.protocol"),
    "no-broker": ("rm_amqp.planted", "dtx.broker"),
    "dtx": ("dtx.protocol.planted", "dtx.store"),
    "pyspark": ("tm.planted", "pyspark"),
    "core": ("xabridge.pipeline.core.planted", "pyarrow"),
    "proton-once": ("rm_amqp.planted", "proton"),
    "proton": ("dtx.store.planted", "proton"),
    "proton-above": ("xabridge.demo.planted", "proton"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages and their settings."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--no-logo", *arguments],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def plant(tree: Path, module: str, imported: str) -> None:
    path = tree / Path(*module.split(".")).with_suffix(".py")
    path.write_text(f"import {imported}\n")


def test_the_contracts_hold(tree: Path) -> None:
    result = lint(tree)
    assert result.returncode == 0, result.stdout
    assert f"Contracts: {len(SETTINGS['contracts'])} kept, 0 broken." in result.stdout


def test_every_contract_has_a_violation_here() -> None:
    assert sorted(contract["id"] for contract in SETTINGS["contracts"]) == sorted(VIOLATIONS)


def test_each_violation_is_caught_by_its_contract(tree: Path) -> None:
    for number, (module, imported) in enumerate(VIOLATIONS.values()):
        plant(tree, f"{module}{number}", imported)
    plant(tree, "xa.detour", "dtx.protocol")
    plant(tree, "tm.planted", "xa.detour")
    result = lint(tree)
    assert result.returncode == 1, result.stdout
    assert f"Contracts: 0 kept, {len(VIOLATIONS)} broken." in result.stdout
    said = " ".join(result.stdout.partition("Broken contracts")[2].split())
    names = {contract["id"]: contract["name"] for contract in SETTINGS["contracts"]}
    sections = dict(zip(names, _sections(said, list(names.values())), strict=True))
    for number, (contract, (module, imported)) in enumerate(VIOLATIONS.items()):
        assert f"{module}{number} -> {imported}" in sections[contract], contract
    assert "tm.planted -> xa.detour" in sections["no-amqp"], "by way of another module"


def _sections(said: str, names: list[str]) -> list[str]:
    """What is said of each contract: its name is underlined."""
    begins = [said.index(f" {name} ---") for name in names]
    return [said[begin:end] for begin, end in zip(begins, [*begins[1:], len(said)], strict=True)]


def test_every_package_is_watched() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools"}
    assert found == set(PACKAGES)
