"""These tests pin the public names of rm_db, and what the use of one of them loads."""

from __future__ import annotations

import subprocess
import sys

import rm_db


def test_public_names() -> None:
    assert sorted(rm_db.__all__) == [
        "BranchConnection",
        "DecidingDatabase",
        "MariaBranchConnection",
        "MariaResource",
        "PostgresBranchConnection",
        "PostgresResource",
        "PreparedTransaction",
        "deciding_database",
        "take_part",
    ]
    assert set(rm_db.__all__) == set(rm_db._HOME)
    assert set(rm_db.__all__) <= set(dir(rm_db))
    for name in rm_db.__all__:
        assert getattr(rm_db, name) is not None


def test_a_name_that_is_none() -> None:
    assert not hasattr(rm_db, "nothing")


def loaded(code: str) -> set[str]:
    """The modules that `code` loads."""
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(told.stdout.split())


def test_importing_it_loads_nothing_else() -> None:
    assert not {"sqlalchemy", "psycopg", "xa", "rm_db.address"} & loaded("import rm_db")


def test_sqlalchemy_s_orm_is_loaded_by_who_uses_it_only() -> None:
    modules = loaded("from rm_db import BranchConnection, DecidingDatabase, PostgresResource, take_part")
    assert "sqlalchemy.engine" in modules
    assert not {"sqlalchemy.orm", "sqlalchemy.ext.asyncio", "sqlalchemy.dialects.mysql"} & modules


def test_postgres_in_two_phases_loads_no_decider() -> None:
    modules = loaded("from rm_db import PostgresResource")
    assert not {"rm_db.decider", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql"} & modules
