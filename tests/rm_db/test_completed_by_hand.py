"""These tests kill a transaction manager right behind its decision, complete a branch by hand at the server, and let
another process recover: it tells what is not there any more, and what PostgreSQL knows of it.
"""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tests.postgres import Postgres
from xabridge.cli import main
from xabridge.testing.mariadb import MariaDB

PATIENCE_S: Final = 60
ROOT: Final = Path(__file__).parents[2]
KILLED: Final = """
import os, signal, sys
from sqlalchemy import text
from rm_db import DecidingDatabase
from tm import TransactionManager
from tm.log import FileLog
def dying(decide):
    def decided(*arguments):
        decide(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    return decided
for kind in FileLog, DecidingDatabase:
    kind.decide = dying(kind.decide)
with TransactionManager.from_config(sys.argv[1]) as manager, manager.begin() as transaction:
    for name in ("shop", "ledger"):
        transaction[name].execute(text("INSERT INTO made VALUES (1)"))
"""


class Site:
    """Two databases, their configuration, and a transaction that is decided and nowhere committed: in a log, or in the
    database `deciding`, where one is named."""

    def __init__(self, folder: Path, **urls: str) -> None:
        self.config = folder / "xabridge.toml"
        deciding = urls.pop("deciding", None)
        resources = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
        log = f'log = "file://{folder}/log"\n' if deciding is None else ""
        if deciding is not None:
            resources += f'deciding = {{ url = "{deciding}", mode = "decider" }}\n'
        self.config.write_text(f'node = "node-1"\n{log}[resources]\n{resources}')
        dead = subprocess.run(
            [sys.executable, "-c", KILLED, str(self.config)], cwd=ROOT, timeout=PATIENCE_S, check=False
        )
        assert dead.returncode == -signal.SIGKILL

    def recover(self, *arguments: str) -> tuple[int, str]:
        """As `command`, of `recover`."""
        return self.command("recover", *arguments)

    def command(self, *arguments: str) -> tuple[int, str]:
        """A command, in this process, which is not the one that was killed: its exit code, and its words."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*arguments, "--config", str(self.config)])
        return code, " ".join(f"{out.getvalue()} {err.getvalue()}".split())


def made_in(url: str) -> list[int]:
    """The numbers in a PostgreSQL database."""
    with psycopg.connect(url) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM made")]


def two_of_postgres(postgres: Postgres) -> dict[str, str]:
    urls = {name: postgres.create_database() for name in ("shop", "ledger")}
    for url in urls.values():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE made (number integer PRIMARY KEY)")
    return urls


def by_hand(url: str, command: str) -> None:
    """COMMIT or ROLLBACK PREPARED of the only branch there, as somebody does with psql."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
        ((gid,),) = rows
        connection.execute(f"{command} PREPARED '{gid}'".encode())


def test_rolled_back_by_hand_is_a_heuristic_outcome_until_it_is_forgotten(postgres: Postgres, tmp_path: Path) -> None:
    urls = two_of_postgres(postgres)
    site = Site(tmp_path, **urls)
    by_hand(urls["shop"], "ROLLBACK")
    code, said = site.recover("run", "--dry-run")
    assert code == 3
    assert "would be committed on ledger" in said
    assert "would be noted as completed on its own on shop: decided to commit, and somebody has rolled it back" in said

    code, said = site.recover("run")
    assert code == 3
    assert "committed on ledger" in said
    assert "completed on its own, noted on shop: decided to commit, and somebody has rolled it back" in said
    assert {name: made_in(url) for name, url in urls.items()} == {"shop": [], "ledger": [1]}

    code, listed = site.recover("list", "--json")
    assert code == 3
    (view,) = json.loads(listed)["transactions"]
    assert [(branch["resource"], branch["outcome"]) for branch in view["branches"]] == [("shop", "XA_HEURRB")]
    assert site.recover("run")[0] == 3
    _, shown = site.recover("show", view["name"])
    assert "it was to commit, and was carried out on the branches that are not listed here" in shown

    assert site.recover("forget", view["name"], "--yes")[0] == 0
    assert site.recover("list")[0] == site.recover("run")[0] == 0


def test_list_asks_what_became_of_decisions_without_a_branch(postgres: Postgres, tmp_path: Path) -> None:
    urls = two_of_postgres(postgres)
    site = Site(tmp_path, **urls)
    by_hand(urls["shop"], "ROLLBACK")
    by_hand(urls["ledger"], "COMMIT")
    code, said = site.recover("list")
    assert code == 3, said
    assert "decided to commit, and somebody has rolled it back" in said
    assert "ledger" not in said
    assert site.recover("list", "--node", "another")[0] == 0

    (named,) = re.findall(r"node-1·\w+·\d+(?= on shop)", said)
    code, said = site.recover("show", named)
    assert code == 3
    assert "not there any more on ledger: it was committed, as decided" in said
    assert "on shop: decided to commit, and somebody has rolled it back" in said
    assert "next xabridge recover run notes it. Compare the data and repair it by hand" in said
    code, said = site.command("check")
    assert code == 1
    assert f"fail decisions {named} on shop: decided to commit, and somebody has rolled it back" in said
    assert "1 branch known to be committed" in said
    code, said = site.command("doctor")
    assert f"fail decisions {named} on shop: decided to commit, and somebody has rolled it back" in said
    assert "which the next recovery pass ends" not in said


def test_against_a_decision_every_command_says_so_noted_or_not_until_it_is_forgotten(
    postgres: Postgres, tmp_path: Path
) -> None:
    """The row of the table in docs/recover.md, and the same advice everywhere."""
    urls = two_of_postgres(postgres)
    site = Site(tmp_path, **urls)
    for name in urls:
        by_hand(urls[name], "ROLLBACK" if name == "shop" else "COMMIT")
    (named,) = set(re.findall(r"node-1·\w+·\d+(?= on shop)", site.recover("list")[1]))
    expected = {
        ("recover", "list"): 3, ("recover", "show", named): 3, ("recover", "run", "--dry-run"): 3, ("check",): 1,
    }  # fmt: skip

    def codes() -> dict[tuple[str, ...], int]:
        return {command: site.command(*command)[0] for command in expected}

    def failed() -> list[str]:
        """The checks of doctor that failed; what the log's disk is differs by machine."""
        checks = json.loads(site.command("doctor", "--json")[1])["checks"]
        return [check["check"] for check in checks if check["health"] == "fail" and check["check"] != "disk"]

    assert codes() == expected
    assert failed() == ["outcomes"]
    for command in ("doctor",), ("check",), ("recover", "show", named):
        said = site.command(*command)[1]
        assert "xabridge recover run notes it. Compare the data and repair it by hand, then: xabridge recover" in said
        assert "start no manager" not in said, "the pass that notes it is what one makes at its start"

    assert site.recover("run")[0] == 3
    assert codes() == expected
    assert failed() == ["outcomes"]
    for command in ("doctor",), ("check",), ("recover", "show", named):
        said = site.command(*command)[1]
        assert f"ompare the data and repair it by hand, then: xabridge recover forget {named}" in said
        assert "start no manager" not in said

    assert site.recover("forget", named, "--yes")[0] == 0
    assert codes() == {**dict.fromkeys(expected, 0), ("recover", "show", named): 1}
    assert failed() == []


def test_without_a_log_to_note_it_in_they_say_that_one_is_needed(postgres: Postgres, tmp_path: Path) -> None:
    """The decision is in a database that decides, and stays there."""
    urls = two_of_postgres(postgres)
    site = Site(tmp_path, **urls, deciding=f"sqlite:///{tmp_path}/deciding.db")
    by_hand(urls["shop"], "ROLLBACK")
    assert site.recover("run")[0] == 3
    code, said = site.recover("list")
    assert code == 3
    (named,) = set(re.findall(r"node-1·\w+·\d+(?= on shop)", said))
    for command, expected in (("check",), 1), (("doctor",), 1), (("recover", "show", named), 3):
        code, said = site.command(*command)
        assert code == expected, said
        assert "decided to commit, and somebody has rolled it back" in said
        assert "configure one beside the resource that decides" in said
        assert "log there is no log" not in said

    site.config.write_text(f'log = "file://{tmp_path}/log"\n{site.config.read_text()}')
    assert site.recover("run")[0] == 3
    assert site.recover("forget", named, "--yes")[0] == 0
    assert site.recover("list")[0] == site.command("check")[0] == 0


def test_check_says_what_is_known_to_be_committed(postgres: Postgres, tmp_path: Path) -> None:
    urls = two_of_postgres(postgres)
    site = Site(tmp_path, **urls)
    for url in urls.values():
        by_hand(url, "COMMIT")
    code, said = site.command("check")
    assert code == 0, said
    assert "1 decision of which no branch is found; 2 branches known to be committed" in said
    assert "ok age shop and ledger: asked for what is in doubt; how old the data is, is not known" in said
    assert said.endswith("nothing is found that does not fit together; not every age was compared")


@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
def test_committed_by_hand_is_told_and_no_more(postgres: Postgres, tmp_path: Path, *, both: bool) -> None:
    urls = two_of_postgres(postgres)
    site = Site(tmp_path, **urls)
    for name in ("shop", "ledger") if both else ("shop",):
        by_hand(urls[name], "COMMIT")
    code, said = site.recover("run")
    assert code == 0
    assert f"not there any more on shop{', ledger' * both}: it was committed, as decided" in said
    assert {name: made_in(url) for name, url in urls.items()} == {"shop": [1], "ledger": [1]}
    assert site.recover("run") == (0, "nothing in doubt")


def test_what_another_server_is_asked_is_unknown(postgres: Postgres, tmp_path: Path) -> None:
    """Another server took the place of the one that prepared the branch: the same transaction id says nothing there."""
    urls = two_of_postgres(postgres)
    site = Site(tmp_path, **urls)
    by_hand(urls["shop"], "ROLLBACK")
    other = Postgres({"max_prepared_transactions": "10"})
    other.start()
    try:
        site.config.write_text(site.config.read_text().replace(urls["shop"], other.create_database()))
        code, said = site.recover("run")
    finally:
        other.stop()
        other.remove()
    assert code == 0
    assert "not there any more on shop: committed before, or completed by hand" in said


def test_a_database_restored_from_a_copy_older_than_the_decision_has_lost_it(
    postgres: Postgres, tmp_path: Path
) -> None:
    """The same system identifier and timeline: the id that the decision has noted was not given yet."""
    urls = two_of_postgres(postgres)
    older = Postgres({"max_prepared_transactions": "10"})
    older.start()
    try:
        urls["shop"] = older.create_database()
        with psycopg.connect(urls["shop"], autocommit=True) as connection:
            connection.execute("CREATE TABLE made (number integer PRIMARY KEY)")
        older.stop()
        kept = older.data.with_name("kept")
        subprocess.run(["cp", "-a", older.data, kept], timeout=PATIENCE_S, check=True)
        older.start()
        with psycopg.connect(urls["shop"], autocommit=True) as connection:
            for _ in range(50):  # those that a maintenance job of the server may take below
                connection.execute("SELECT pg_current_xact_id()")

        site = Site(tmp_path, **urls)
        older.stop()
        older.data.rename(older.data.with_name("lost"))
        kept.rename(older.data)
        older.start()
        code, said = site.recover("run", "--dry-run")
        assert code == 3, said
        assert "would be noted as completed on its own on shop: decided to commit, and lost: " in said
        code, said = site.command("check")
        assert code == 1
        assert "on shop: decided to commit, and lost: the resource is older than this decision" in said
        code, said = site.recover("run")
        assert code == 3, said
        assert "shop: decided to commit, and lost: the resource is older than this decision" in said
        assert "restored from a back-up" in said
        (named,) = set(re.findall(r"node-1·\w+·\d+", said))
        assert "noted in the log as XA_HEURRB: decided to commit, and lost:" in site.recover("show", named)[1]
        assert "lost: the resource is older than this decision" in site.recover("run")[1], "the next pass says it too"
        assert site.recover("list")[0] == site.recover("run")[0] == 3
    finally:
        older.stop()
        older.remove()


def test_what_is_prepared_and_not_listed_keeps_its_decision(postgres: Postgres, tmp_path: Path) -> None:
    """Recovery under a role that may not complete the branch does not see it, and ends nothing."""
    urls = two_of_postgres(postgres)
    site = Site(tmp_path, **urls)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS stranger")
        connection.execute("CREATE ROLE stranger LOGIN")

    owned = site.config.read_text()
    strangers = urls["shop"].replace("postgresql://postgres", "postgresql://stranger")
    assert strangers != urls["shop"]
    site.config.write_text(owned.replace(urls["shop"], strangers))
    code, said = site.recover("run")
    assert code == 3
    assert "still in doubt on shop: it is prepared there, but not listed" in said
    site.config.write_text(owned)
    code, said = site.recover("run")
    assert (code, "committed on shop" in said) == (0, True)
    assert made_in(urls["shop"]) == [1]


@pytest.mark.parametrize("command", ["COMMIT", "ROLLBACK"])
def test_mariadb_can_not_tell_and_the_line_says_so(
    mariadb: MariaDB, postgres: Postgres, tmp_path: Path, command: str
) -> None:
    urls = two_of_postgres(postgres)
    urls["shop"] = mariadb.create_database("mariadb")
    mariadb.admin(f"CREATE TABLE `{urls['shop'].rpartition('/')[2]}`.made (number integer PRIMARY KEY)")
    site = Site(tmp_path, **urls)
    ((format_id, gtrid_length, bqual_length, octets),) = mariadb.ask("XA RECOVER FORMAT='RAW'")
    raw = octets if isinstance(octets, bytes) else octets.encode("latin-1")
    gtrid, bqual = raw[:gtrid_length], raw[gtrid_length : gtrid_length + bqual_length]
    mariadb.admin(f"XA {command} X'{gtrid.hex()}', X'{bqual.hex()}', {format_id}")
    code, said = site.recover("run")
    assert code == 0
    assert "committed on ledger" in said
    assert "not there any more on shop: committed before, or completed by hand" in said
    assert site.recover("run") == (0, "nothing in doubt")
