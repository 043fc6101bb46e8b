"""This runs the contract suite over the tables in a folder, which are read by a library that writes none of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_kernel_rust_sharing_wrapper import PythonInterface, ScanBuilder, Table
from deltalake import DeltaTable

from rm_delta import DeltaResource
from xa import Registrar
from xa.in_process_branches import Branches
from xabridge.testing.contract import Capabilities, Harness
from xabridge.testing.contract.resource_manager import *  # noqa: F403 — the suite: pytest finds its classes here

KEYS = pa.schema([pa.field("key", pa.string(), nullable=False)])


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of a table, read by the kernel that the Delta project maintains."""
    location = folder.as_uri()
    engine = PythonInterface(location)
    scan = ScanBuilder(Table(location).snapshot(engine)).build()
    return [row for batch in scan.execute(engine) for row in pa.record_batch(batch).to_pylist()]


class DeltaHarness(Harness):
    """A folder of its own for each test."""

    wrong_open_string = "delta://host/lake"
    capabilities = Capabilities(
        branches_shared=False, joins_active=False, heuristics=False, expires=False, unreachable=False
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open_string = f"delta://{folder}"
        self.clients: list[DeltaResource] = []

    def new(self, registrar: Registrar) -> DeltaResource:
        self.clients.append(DeltaResource(registrar))
        return self.clients[-1]

    def write(self, rm: Any, rmid: int, key: str) -> None:
        rm.session(rmid).append("keys", [{"key": key}])

    def read(self, rm: Any, rmid: int) -> None:
        assert rm.session(rmid).schema("keys") == KEYS

    def committed(self) -> set[str]:
        rows = [row["key"] for row in rows_of(self.folder / "keys")]
        assert len(rows) == len(set(rows)), "no row is there twice"
        return set(rows)

    def crash(self, rm: Any) -> None:
        rm.drop()

    def disconnect(self, rm: Any) -> None:
        rm.driver.unit_driver.close()

    def leaks(self) -> list[str]:
        manifests = sorted(path.name for path in (self.folder / "_xabridge" / "branches").glob("*"))
        return manifests + [f"{branches} branches" for branches in map(_branches, self.clients) if branches]


def _branches(rm: DeltaResource) -> int:
    assert isinstance(rm.driver, Branches)
    return len(rm.driver)


@pytest.fixture(scope="module")
def empty_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one table, to be copied."""
    folder = tmp_path_factory.mktemp("lake")
    DeltaTable.create(folder / "keys", KEYS)
    return folder


@pytest.fixture
def harness(tmp_path: Path, empty_lake: Path) -> DeltaHarness:
    shutil.copytree(empty_lake, tmp_path, dirs_exist_ok=True)
    return DeltaHarness(tmp_path)
