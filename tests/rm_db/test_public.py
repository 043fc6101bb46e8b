"""These tests pin the public names of rm_db, and what the use of one of them loads."""

from __future__ import annotations

import rm_db
from tests.programs import check_exports, loaded_by


def test_public_names() -> None:
    sessions = "BranchConnection MariaBranchConnection PostgresBranchConnection"
    resources = "DecidingDatabase MariaResource PostgresResource PreparedTransaction deciding_database take_part"
    check_exports(rm_db, f"{sessions} {resources}")


def test_importing_it_loads_nothing_else() -> None:
    assert not {"sqlalchemy", "psycopg", "xa", "rm_db.address"} & loaded_by("import rm_db")


def test_sqlalchemy_s_orm_is_loaded_by_who_uses_it_only() -> None:
    modules = loaded_by("from rm_db import BranchConnection, DecidingDatabase, PostgresResource, take_part")
    assert "sqlalchemy.engine" in modules
    assert not {"sqlalchemy.orm", "sqlalchemy.ext.asyncio", "sqlalchemy.dialects.mysql"} & modules


def test_postgres_in_two_phases_loads_no_decider() -> None:
    modules = loaded_by("from rm_db import PostgresResource")
    assert not {"rm_db.decider", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql"} & modules
