"""This test executes every code block of README and docs, page by page. SQL runs first, at the page's database. Then,
in their order, TOML becomes the configuration that the Python blocks read, and Python runs in one namespace. Shell
lines are parsed as the command line parses them. The test replaces only addresses and folders, by those of this
machine.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, make_url

from tests.cases import each
from tests.cli import parsed
from tests.docs.guide import ROOT, Block, blocks, pages
from tests.postgres import Postgres
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.pipeline.environment import BRIEF
from tm import configuration_from

EXECUTED = {"python", "toml", "sql", "sh"}
ELSEWHERE = {
    "console": "a session at a terminal; the tests of its commands compare it",
    "mermaid": "tests/bench/test_diagrams.py compares it with the tables",
    "wire": "tests/dtx/protocol/test_wire.py encodes and decodes it",
    "text": "what is shown, no code",
}
ON_SPARK = "pipeline.md"
IN_A_PROCESS = {ON_SPARK, "django.md"}
"""The pages whose Python needs a process of its own: Spark's, and Django's, whose settings are the process's."""
ON_MARIADB = "mariadb.md"
"""The page whose database is MariaDB's."""
MODULES = "resource-managers.md"
"""The page whose Python are two modules: test_resource_managers.py runs them."""
ON_ACTIVEMQ = "openwire.md"
"""The page that needs a broker in Java: tests/rm_openwire/test_settings.py runs it."""
WITH_PYTHON = [
    page
    for page in pages()
    if page.name not in {*IN_A_PROCESS, MODULES, ON_ACTIVEMQ}
    and any(block.language in {"python", "sql"} for block in blocks(page))
]


class Surroundings:
    """What a page needs: a folder to be in, a broker, and a database, which is MariaDB's where a page is about that."""

    def __init__(self, folder: Path, broker: str, database: str) -> None:
        self._folder = folder
        self._places = {
            "amqp://127.0.0.1:5672": f"amqp://{broker}",
            "postgresql://shop@127.0.0.1/shop": database,
            "mariadb://shop@127.0.0.1/shop": database,
            "file:///var/lib/xabridge/": f"file://{folder}/",
            "/srv/lake": f"{folder}/lake",
        }
        self._database = database
        self._namespace: dict[str, Any] = {"__name__": "guide"}

    def code(self, block: Block) -> str:
        """What the block says, of this machine."""
        code = block.code
        for old, new in self._places.items():
            code = code.replace(old, new)
        return code

    def dispose(self) -> None:
        """Closes the connections that engines of the blocks keep, as the end of their process would."""
        for value in self._namespace.values():
            if isinstance(value, Engine):
                value.dispose()

    def execute(self, block: Block) -> None:
        """Does what the block says."""
        code = self.code(block)
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + code, block.page, "exec", dont_inherit=True), self._namespace)  # noqa: S102 — our own
        elif block.language == "sql" and self._database.startswith("mariadb"):
            with create_engine(make_url(self._database).set(drivername="mariadb+pymysql")).begin() as connection:
                connection.exec_driver_sql(code)
        elif block.language == "sql":
            with psycopg.connect(self._database, autocommit=True) as connection:
                connection.execute(code.encode())
        elif block.language == "toml" and "node" in tomllib.loads(code):
            path = self._folder / "xabridge.toml"
            path.write_text(code, encoding="utf-8")
            configuration_from(path)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_blocks_run(page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> None:
    if page.name == ON_MARIADB:
        database = request.getfixturevalue("mariadb").create_database("mariadb")
    else:
        database = request.getfixturevalue("postgres").create_database()
    broker = EmbeddedBroker(tmp_path)
    monkeypatch.chdir(tmp_path)
    surroundings = Surroundings(tmp_path, broker.address, database)
    try:
        for block in sorted(blocks(page), key=lambda block: block.language != "sql"):
            surroundings.execute(block)
        assert broker.left() == []
    finally:
        surroundings.dispose()
        broker.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] if page == ON_SPARK else []) for page in sorted(IN_A_PROCESS)]
)
def test_the_blocks_run_in_a_process(page: str, postgres: Postgres, tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    surroundings = Surroundings(tmp_path, broker.address, postgres.create_database())
    script = []
    try:
        for block in sorted(blocks(ROOT / "docs" / page), key=lambda block: block.language != "sql"):
            if block.language == "python":
                script.append(surroundings.code(block))
            else:
                surroundings.execute(block)

        settings = tmp_path / "spark-defaults.conf"
        settings.write_text("".join(f"{name} {value}\n" for name, value in BRIEF.items()))
        command, variables = [sys.executable, "-c", "\n".join(script)], os.environ | {"SPARK_CONF_DIR": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        assert broker.left() == []
    finally:
        broker.stop()


@each("page", pages())
def test_every_block_is_of_a_kind_that_is_looked_at(page: Path) -> None:
    for block in blocks(page):
        assert block.language in EXECUTED | ELSEWHERE.keys(), f"{block.where}: {block.language or 'no language'}"


@each("page", pages())
def test_settings_are_settings(page: Path, tmp_path: Path) -> None:
    file = tmp_path / "xabridge.toml"
    for block in blocks(page):
        if block.language == "toml":
            whole = "node" in tomllib.loads(block.code)
            file.write_text(block.code if whole else f'node = "some-node"\n{block.code}', encoding="utf-8")
            assert configuration_from(file).node


@pytest.mark.slow
@each("page", pages())
def test_shell_lines_are_commands_of_ours(page: Path) -> None:
    for block in blocks(page):
        if block.language == "sh":
            for line in block.code.splitlines():
                _check_command(shlex.split(line, comments=True), block)


def _check_command(words: list[str], block: Block) -> None:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]

    match words:
        case []:
            return
        case ["xabridge", "--version"]:  # which would end the test
            return
        case ["xabridge", *rest]:
            parsed(rest)
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            for target in targets:
                name, is_variable, _ = target.partition("=")
                known = rf"[(,]{name}\)" if is_variable else rf"^{name}:"
                assert re.search(known, makefile, re.MULTILINE), f"{block.where}: make {target}"
        case ["pip", "install", what]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            extras = re.fullmatch(r"\.(?:\[([a-z,]+)\])?", what)
            assert extras is not None, f"{block.where}: {what}"
            assert set((extras[1] or "").split(",")) <= {"", *project["optional-dependencies"]}, block.where
        case ["docker", "compose", *_]:
            assert (ROOT / "compose.yaml").exists()
        case _:
            pytest.fail(f"{block.where}: {' '.join(words)} is no command of ours")


@each("page", pages())
def test_links_lead_somewhere(page: Path) -> None:
    """To a file, and to a heading of it."""
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", _prose(page)):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            assert not heading or heading in _headings(page.parent / target if target else page), (
                f"{page.name}: {heading}"
            )


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def _headings(page: Path) -> set[str]:
    """The anchors that the site gives them."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", _prose(page))
    plain = [
        re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain} | set(re.findall(r'id="([\w-]+)"', text))


def test_what_the_reference_names_is_there() -> None:
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert resolve_name(name).__doc__, f"{page.name}: {name}"
