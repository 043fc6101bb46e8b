"""These tests install the wheel for a user without a clone: its commands must work, and the pages that they refer to
must exist. They install it alone, with each extra, and beside a broken plugin of another project.

The environments have only the packages that the wheel requires, in the versions of this environment, so that no network
is needed to make them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import Distribution, distribution, entry_points
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.programs import output_of
from tools.compilation import libraries, sources
from xabridge.testing.mariadb import MariaDB

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
EXTRAS = sorted({*(distribution("xabridge").metadata.get_all("Provides-Extra") or ())} - {"pipeline-java"})
"""But for pipeline-java, which is a Java runtime and no module."""
USERS = ("bench", "demo", "pipeline", "testing")
"""Modules that a user may have beside us."""
COMMANDS = sorted(entry.name for entry in entry_points(group="xabridge.commands"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    return built(tmp_path_factory.mktemp("wheel"))


def built(folder: Path, **variables: str) -> Path:
    """A wheel, in this folder."""
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, env=os.environ | variables)
    (made,) = folder.glob("xabridge-*.whl")
    return made


def needed(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that one asks for, with these extras, and that those ask for."""
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        key = requirement.name.lower()
        if key not in found or requirement.extras:
            found[key] = distribution(requirement.name)
            needed(requirement.name, frozenset(requirement.extras), found)
    return found


def environment(folder: Path, wheel: Path) -> Path:
    """The folder of commands of an environment in `folder` with the wheel, what it asks for, modules of a user with
    names that any project may have, and nothing else."""
    venv.create(folder, with_pip=False)
    for module in USERS:
        (packages_of(folder) / f"{module}.py").write_text(f"raise RuntimeError('{module} is the user's own module')\n")
    add_needed(folder)
    install = [*PIP, "--python", str(folder / "bin" / "python"), "install", "--no-compile", "--no-deps"]
    install += ["--no-index", str(wheel)]
    subprocess.run(install, check=True)
    return folder / "bin"


def packages_of(folder: Path) -> Path:
    """Where the packages of an environment are."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))


def add_needed(folder: Path, *extras: str) -> None:
    """Adds the packages that the wheel asks for with these extras."""
    packages = packages_of(folder)
    for each in needed("xabridge", frozenset(extras), {}).values():
        for file in each.files or ():
            here = Path(str(each.locate_file(file)))
            there = packages / file.parts[0]
            if ".." not in file.parts and here.exists() and not there.exists():
                there.symlink_to(here.parents[len(file.parts) - 2] if len(file.parts) > 1 else here)


@pytest.fixture(scope="module")
def with_extras(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Callable[..., Path]:
    """The folder of commands of an environment with such extras, the same for all who ask for them. All but the first
    are copies, because pip takes seconds."""

    @cache
    def made(*extras: str) -> Path:
        folder = tmp_path_factory.mktemp("installed") / "environment"
        if not extras:
            return environment(folder, wheel)
        bare = made().parent
        shutil.copytree(bare, folder, symlinks=True)
        script = folder / "bin" / "xabridge"
        script.write_text(script.read_text().replace(str(bare), str(folder)))
        add_needed(folder, *extras)
        return folder / "bin"

    return made


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.long  # the modules themselves: make check-compiled
@pytest.mark.timeout(900)  # the C compiler
def test_the_compiled_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    """It has every compiled module and its source, and a first transaction commits on them."""
    compiled_wheel = built(tmp_path, XABRIDGE_COMPILE="1")
    assert "-none-any" not in compiled_wheel.name
    with zipfile.ZipFile(compiled_wheel) as archive:
        names = set(archive.namelist())
    assert {str(path) for path in libraries(Path())} | {str(path) for path in sources()} <= names
    commands = environment(tmp_path / "environment", compiled_wheel)
    modules = [".".join(path.with_suffix("").parts) for path in sources()]
    code = f"import importlib; print(*(importlib.import_module(name).__file__ for name in {modules}))"
    files = run(tmp_path, commands / "python", "-c", code).stdout.split()
    assert len(files) == len(modules)
    assert all(file.endswith(".so") and file.startswith(str(tmp_path)) for file in files), files
    first = run(tmp_path, commands / "python", "-c", FIRST)
    assert (first.returncode, first.stdout) == (0, "{'number': 1} 1\n"), first.stderr


@pytest.mark.slow
def test_a_build_fetches_the_compiler_only_where_it_is_asked_for() -> None:
    code = "from hatchling.build import get_requires_for_build_wheel as needs; print(needs())"
    for wanted, fetches in (("", False), ("1", True)):
        said = output_of(code, cwd=ROOT, env=os.environ | {"XABRIDGE_COMPILE": wanted})
        assert ("mypy==" in said) is fetches, said


@pytest.mark.slow
@pytest.mark.long  # the demo: tests/xabridge/demo; the wheel: its files, commands and a transaction
def test_the_demo_and_what_it_says_to_read_next(with_extras: Callable[..., Path], tmp_path: Path) -> None:
    installed = with_extras("demo")
    arguments = ("demo", "--no-kill", "--orders", "40", "--workers", "2", "--plain")
    done = run(tmp_path, installed / "xabridge", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    guides = re.findall(r"/\S+\.md", done.stdout)
    assert len(guides) == 2, done.stdout
    for guide in guides:
        assert Path(guide).is_relative_to(installed.parent)
        assert Path(guide).exists()


@pytest.mark.slow
def test_it_has_every_file_and_is_pure_unless_the_compiled_one_is_asked_for(wheel: Path) -> None:
    packages = ("xa", "tm", "dtx", "rm_amqp", "rm_db", "rm_delta", "rm_openwire", "xabridge")
    with zipfile.ZipFile(wheel) as archive:
        missing = {str(file.relative_to(ROOT)) for package in packages for file in files_of(package)}
        missing -= set(archive.namelist())
        assert not missing
        assert {f"{package}/py.typed" for package in packages} <= set(archive.namelist())
        assert not [name for name in archive.namelist() if name.endswith((".so", ".c"))]
    assert wheel.name.endswith("-py3-none-any.whl")


def files_of(package: str) -> list[Path]:
    """The package's files, without what an interpreter or a compiler has made of them."""
    found = (file for file in (ROOT / package).rglob("*") if file.is_file())
    return [file for file in found if "__pycache__" not in file.parts and file.suffix not in {".so", ".c", ".pyc"}]


@pytest.mark.slow
def test_pipelines_and_their_demo_find_what_they_import(with_extras: Callable[..., Path], tmp_path: Path) -> None:
    commands = with_extras("demo", "pipeline")
    code = """
from importlib import import_module
from pkgutil import walk_packages
import xabridge.demo, xabridge.pipeline
for package in (xabridge.demo, xabridge.pipeline):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in {"deltalake", "pymysql"}:  # of other extras
                raise
"""
    done = run(tmp_path, commands / "python", "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.long  # the wheel's files and imports: the two tests above; the demo: tests/xabridge/demo
@pytest.mark.timeout(600)  # Spark starts
def test_the_demo_of_pipelines(with_extras: Callable[..., Path], tmp_path: Path) -> None:
    commands = with_extras("demo", "pipeline")
    done = run(tmp_path, commands / "xabridge", "pipeline", "demo", "--orders", "5", "--no-kill", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    proof = json.loads(done.stdout)
    assert proof["exact"] is True
    assert proof["orders"] == proof["rows"] == 5


FIRST = """
import subprocess, sys
from sqlalchemy import text
from xabridge import Message, ResourceConfig, TransactionManager

command = [sys.executable, "-m", "dtx", "--listen", "127.0.0.1:0", "--store", "sqlite:///broker.db"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
    try:
        port = broker.stdout.readline().split("127.0.0.1:")[1].split()[0]
        resources = {
            "broker": f"amqp://127.0.0.1:{port}",
            "shop": ResourceConfig("sqlite:///shop.db", "decider"),
        }
        with TransactionManager("first-1", None, resources) as tm:
            with tm.begin() as tx:
                tx["shop"].execute(text("CREATE TABLE orders (number integer)"))
            with tm.begin() as tx:
                tx["shop"].execute(text("INSERT INTO orders VALUES (1)"))
                tx["broker"].send("orders", Message({"number": 1}))
            with tm.begin() as tx:
                message = tx["broker"].receive("orders", timeout_s=5)
                print(message.body, tx["shop"].execute(text("SELECT count(*) FROM orders")).scalar())
    finally:
        broker.terminate()
"""


HELPS = """
import contextlib, io, sys
from xabridge.cli.main import main

for command in sys.argv[1:]:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        main([command, "--help"])
    if "usage: xabridge " + command not in told.getvalue():
        print(command, told.getvalue())
"""
"""One process for all: each of its own would take a second."""


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine
@pytest.mark.parametrize("extra", ["", *(pytest.param(extra, marks=pytest.mark.long) for extra in EXTRAS)])
def test_every_command_helps_and_a_first_transaction_commits(
    extra: str, with_extras: Callable[..., Path], tmp_path: Path
) -> None:
    bare = with_extras(*filter(None, [extra]))
    xabridge = bare / "xabridge"
    for flag, told in (("--version", ["xabridge"]), ("--help", [f"\n    {command}( |\n)" for command in COMMANDS])):
        done = run(tmp_path, xabridge, flag)
        assert (done.returncode, done.stderr) == (0, ""), (flag, done.stderr)
        assert all(re.search(one, done.stdout) for one in told), done.stdout
    done = run(tmp_path, bare / "python", "-c", HELPS, *COMMANDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    for words, status in ((["doctor"], 1), (["recover", "list"], 2)):
        done = run(tmp_path, xabridge, *words)
        assert done.returncode == status
        assert "xabridge.toml: no such file; write one, or pass --config" in done.stdout + done.stderr
    code = "import dtx, rm_amqp, rm_db, tm, xa, xabridge; print(xabridge.__file__, tm.__file__)"
    places = run(tmp_path, bare / "python", "-c", code).stdout
    assert places.count(str(bare.parent)) == 2, places
    assert not list(tmp_path.iterdir())
    first = run(tmp_path, bare / "python", "-c", FIRST)
    assert (first.returncode, first.stdout) == (0, "{'number': 1} 1\n"), first.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)  # dozens of processes, on a busy machine
def test_what_needs_an_extra_says_which(with_extras: Callable[..., Path], tmp_path: Path) -> None:
    commands = with_extras()
    for words in (["demo"], ["pipeline", "demo"], ["console"], ["broker", "--console", "1"]):
        done = run(tmp_path, commands / "xabridge", *words)
        assert done.returncode != 0, words
        assert "Traceback" not in done.stderr, done.stderr
        assert re.search(r"pip install '\S+\.whl\[(console|demo|pipeline)[\w,-]*\]'", done.stderr), (words, done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(600)  # a dozen processes, on a busy machine
def test_what_needs_a_driver_says_which_extra_has_it(with_extras: Callable[..., Path], tmp_path: Path) -> None:
    commands = with_extras()
    (tmp_path / "xabridge.toml").write_text(
        f'node = "n"\nlog = "file://{tmp_path}/log"\n[resources]\nshop = "mariadb://u@127.0.0.1:1/shop"\n'
        f'[outbox]\ndatabase = "sqlite:///{tmp_path}/outbox.db"\nbroker = "amqp091://guest@127.0.0.1:1/"\n'
    )
    for words in (["doctor"], ["recover", "list"], ["recover", "run"]):
        done = run(tmp_path, commands / "xabridge", *words)
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode in {1, 2}, said
        assert "install xabridge[mariadb]" in said
        assert "install its package again" not in said
        assert "Traceback" not in said

    assert run(tmp_path, commands / "xabridge", "outbox", "create").returncode == 0
    done = run(tmp_path, commands / "xabridge", "outbox", "relay", "--once")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "[rabbitmq]'" in done.stderr
    for name in (
        "rm_db import MariaResource",
        "xabridge.testing.mariadb import MariaDB",
    ):
        done = run(tmp_path, commands / "python", "-c", f"from {name}")
        assert done.stderr.endswith("PyMySQL: install xabridge[mariadb]\n"), done.stderr


WITH_MARIADB = """
import sys
from sqlalchemy import text
from xabridge import TransactionManager

with TransactionManager("node-1", "file://log", {"shop": sys.argv[1], "stock": sys.argv[1]}) as tm:
    with tm.begin() as tx:
        for number, name in enumerate(("shop", "stock")):
            tx[name].execute(text("INSERT INTO orders VALUES (:n)"), {"n": number})
    with tm.begin() as tx:
        print(tx["shop"].scalar(text("SELECT count(*) FROM orders")), tm.recover().clean)
    try:
        with tm.begin() as tx:
            tx["shop"].asyncio
    except Exception as error:
        print("xabridge[asyncio]" in str(error))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_transaction_with_the_extra_mariadb_alone(
    with_extras: Callable[..., Path], tmp_path: Path, mariadb: MariaDB
) -> None:
    commands = with_extras("mariadb")
    url = mariadb.create_database("mariadb")
    mariadb.admin(f"CREATE TABLE {url.rpartition('/')[2]}.orders (number integer) ENGINE = InnoDB")
    done = run(tmp_path, commands / "python", "-c", WITH_MARIADB.replace("file://log", f"file://{tmp_path}/log"), url)
    assert (done.returncode, done.stdout) == (0, "2 True\nTrue\n"), done.stderr


PROGRAM = Path(__file__).parent / "user" / "program.py"
WRONG = (
    ("place(1) + 1", 'place("one") + 1'),
    ("and error.outcome.verdict", "and error.outcome.nothing"),
    ("counts.handled", "counts.nothing"),
    ("finding.why", "finding.nothing"),
)
"""Mistakes that nobody sees who knows no types of ours."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", ["pyright", pytest.param("mypy", marks=pytest.mark.long)])
def test_type_checkers_know_our_types_in_a_program_of_a_user(
    checker: str, with_extras: Callable[..., Path], tmp_path: Path
) -> None:
    if checker == "pyright" and shutil.which("node") is None:
        if os.environ.get("CI"):
            pytest.fail("pyright needs node, and CI has to have it")
        pytest.skip("pyright needs node, which is not installed")

    python = str(with_extras() / "python")
    flags = {
        "mypy": ("--strict", "--no-incremental", "--python-executable", python),
        "pyright": ("--pythonpath", python),
    }
    right = PROGRAM.read_text(encoding="utf-8")
    wrong = right
    for good, bad in WRONG:
        assert good in wrong
        wrong = wrong.replace(good, bad)
    (tmp_path / "right.py").write_text(right, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    found = run(tmp_path, sys.executable, "-m", checker, *flags[checker], "right.py", "wrong.py")
    assert found.stdout.count("right.py:") == 0, found.stdout + found.stderr
    assert found.stdout.count("wrong.py:") == len(WRONG), found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)  # dozens of processes, on a busy machine
def test_a_broken_plugin_breaks_no_other_command(with_extras: Callable[..., Path], tmp_path: Path) -> None:
    commands = with_extras()
    packages = packages_of(commands.parent)
    theirs = packages / "theirs-1.0.dist-info"
    theirs.mkdir()
    (theirs / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    groups = "[xabridge.commands]\nbroken = theirs.command\ngone = nowhere\n"
    groups += "[xabridge.resource_managers]\nnowhere = theirs.command:factory\n"
    (theirs / "entry_points.txt").write_text(groups)
    (packages / "theirs").mkdir()
    (packages / "theirs" / "command.py").write_text("raise RuntimeError('of another time')\n")
    try:
        look_at_commands(commands / "xabridge", tmp_path)
    finally:  # others have the same environment
        for made in (theirs, packages / "theirs"):
            shutil.rmtree(made)


def look_at_commands(xabridge: Path, tmp_path: Path) -> None:
    helped = run(tmp_path, xabridge, "--help")
    assert helped.returncode == 0, helped.stderr
    assert "recover" in helped.stdout
    for words in (["recover", "--help"], ["doctor", "--help"], ["completion", "bash"], ["--version"]):
        done = run(tmp_path, xabridge, *words)
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stderr)
    for command, why in (("broken", "of another time"), ("gone", "nowhere")):
        done = run(tmp_path, xabridge, command)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        (line,) = done.stderr.splitlines()
        assert command in line
        assert "theirs" in line, line
        assert why in line
