"""These tests cover the command itself: its help, the modules that it loads for that, completion in shells, output that
can't be written, docs/recover.md, which shows what the commands print, and its table of exit codes.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

import tm
from tests.postgres import Postgres
from tests.xabridge.cli.field import OTHER_LOG, OTHERS, ROOT, Field, Xabridge, xid_of
from tm.log import DecisionLog
from tm.log.factory import open_log
from xa import Code
from xabridge.cli.main import GROUP, main, make_parser, summary_of
from xabridge.exit_codes import Exit
from xabridge.testing.contract.client import case

LOADED = """
import json, sys
from xabridge.cli.main import main
for words in ["--help"], ["--version"], ["nonsense"], []:
    try:
        main(words)
    except SystemExit:
        pass
print(json.dumps(sorted(sys.modules)))
"""
COMMANDS = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
FULL = "xabridge: what the command says can't be written: No space left on device\n"
ENDS = {"a full disk": (1, FULL), "nobody reads": (141, ""), "nowhere": (0, "")}
"""Where stdout may go: the exit code, and what is told on stderr."""
MANUAL = (ROOT / "docs" / "recover.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```console\n\$ xabridge ([^\n]*)\n(.*?)^```", MANUAL, re.DOTALL | re.MULTILINE)
MENTIONED = sorted(set(re.findall(r"`xabridge ((?:recover|doctor|completion) ?[^`|>]*)`?", MANUAL)))


CODES = re.search(r"^\| what is so \| (.*?) \|\n\|[-|]*\n(.*?)\n\n", MANUAL, re.DOTALL | re.MULTILINE)
assert CODES is not None
EXIT_CODES = {
    row.partition(" | ")[0].removeprefix("| "): [int(code) for code in re.findall(r"\| (\d)(?= )", row)]
    for row in CODES[2].splitlines()
}
"""What is so → the exit code of each command, as the manual has it."""


@pytest.mark.slow
def test_help_loads_no_command() -> None:
    """And none of what they are made of: it is there in a moment, and a command that can't be loaded breaks nothing."""
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(ran.stdout.splitlines()[-1])}
    assert not loaded & {"xa", "dtx", "rm_amqp", "rm_db", "sqlalchemy", "psycopg", "proton", "asyncio"}


def test_every_command_is_listed_with_what_it_says_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for entry in COMMANDS:
        assert summary_of(entry) == entry.load().SUMMARY
        assert f"{entry.name} {entry.load().SUMMARY}" in said
    for module in ("no_such_package.command", "xabridge.cli.no_such_module"):
        assert summary_of(EntryPoint("broken", module, GROUP)) == f"can't be read: there is no text of {module}"
    assert summary_of(EntryPoint("quiet", "xabridge.text", GROUP)) == "has no description"


def test_public_names_of_the_manager() -> None:
    """Each is there when it is asked for, and nothing else is."""
    for name in tm.__all__:
        assert getattr(tm, name).__module__.startswith("tm.") or name == "ConfigurationError"
    assert set(tm.__all__) == set(tm._HOME)
    assert set(tm.__all__) <= set(dir(tm))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        tm.Nonsense  # type: ignore[attr-defined]  # noqa: B018 — that is the test


def test_health_takes_no_time_and_no_url_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in ("-1", "0", "nan", "inf", "1e400", "9" * 30):
        with case(seconds), pytest.raises(SystemExit, match="2"):
            main(["health", f"--timeout={seconds}"])
        assert "expected seconds, above 0 and at most 3600" in capsys.readouterr().err
    assert main(["health", "http://a b/"]) == 4
    assert "could not be reached: " in capsys.readouterr().err


# --- completion -------------------------------------------------------------------------------------------------------
def script_for(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What `xabridge completion` prints."""
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_the_shell_takes(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = script_for(shell, capsys)
    for word in ("recover", "doctor", "rollback", "heuristic", "gone", "older-than", "xabridge recover list --names"):
        assert word in script
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script)
    assert subprocess.run([program, "-n", path], check=False).returncode == 0


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    path = tmp_path / "completion"
    path.write_text(
        script_for("bash", capsys)
        + "\nxabridge() { echo orders-1·3fa91c·8231; }\n"
        + 'ask() { COMP_WORDS=(xabridge "$@"); COMP_CWORD=$#; COMPREPLY=(); '
        + '$(complete -p xabridge | sed \'s/.*-F \\([^ ]*\\) .*/\\1/\') xabridge "${@: -1}" "${@: -2:1}"; '
        + 'echo "${COMPREPLY[*]}"; }\n'
        + "ask rec; ask recover ro; ask recover rollback --h; ask recover show ord\n"
    )
    said = subprocess.run([bash, "--norc", path], capture_output=True, text=True, check=True, cwd=tmp_path)
    completed = [set(line.split()) for line in said.stdout.splitlines()]
    assert completed == [{"recover"}, {"rollback"}, {"--help", "--heuristic"}, {"orders-1·3fa91c·8231"}], said


# --- output that can't be written: the disk is full, the reader of a pipe has gone, or the shell has closed it --------
def ended(words: list[str], capsys: pytest.CaptureFixture[str], where: str, *, unbuffered: bool) -> tuple[object, str]:
    """The exit code of the command, and what it says on stderr, when that is where stdout goes."""
    target: str | int = "/dev/full"
    if where != "a full disk":
        reader, target = os.pipe()
        os.close(reader)
    stream = io.TextIOWrapper(io.FileIO(target, "w"), "utf-8", write_through=unbuffered)
    with (
        closing(stream),
        pytest.MonkeyPatch.context() as patch,
    ):  # not in a fixture, behind which capsys takes the streams again
        patch.setattr("sys.stdout", stream if where != "nowhere" else None)
        with pytest.raises(SystemExit) as over:
            main(words)
    return over.value.code, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file .*/dev/null:ResourceWarning")  # what it opens lasts as long as it
@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_full_disk(capsys: pytest.CaptureFixture[str], tmp_path: Path, *, unbuffered: bool) -> None:
    """And a pipe that nobody reads, or that is closed, where nobody is told."""
    path = tmp_path / "xabridge.toml"
    path.write_text(
        f'node = "n"\n[resources.shop]\nurl = "sqlite:///{tmp_path}/shop.db"\nmode = "decider"\n'
        '[outbox]\ndatabase = "shop"\nbroker = "amqp://127.0.0.1:1"\n'
    )
    for where, told in ENDS.items():
        assert ended(["--help"], capsys, where, unbuffered=unbuffered) == told
    for entry in COMMANDS:
        assert ended([entry.name, "--help"], capsys, "a full disk", unbuffered=unbuffered) == (1, FULL), entry.name
    assert ended(["completion", "bash"], capsys, "a full disk", unbuffered=unbuffered) == (1, FULL)
    for words in (["recover", "list"], ["doctor"], ["outbox", "create", "--dry-run"]):
        code, err = ended([*words, "--config", str(path)], capsys, "a full disk", unbuffered=unbuffered)
        assert (code, err.endswith(FULL)) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_in_a_process_of_its_own(unbuffered: str) -> None:
    program = [sys.executable, "-m", "xabridge.cli", "--version"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as disk:
        done = subprocess.run(program, stdout=disk, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (1, FULL)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(program, stdout=pipe, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (141, "")
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *program]  # the shell has closed it
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- docs/recover.md --------------------------------------------------------------------------------------------------
def comparable(text: str) -> str:
    """Without line breaks, which depend on the length of a path, and without what differs by machine and moment."""
    text = re.sub(r"forced in [0-9.]+ ms|within [0-9.]+ s|\s+\(next\s+try\s+in\s+[^)]*\)", "", text)
    text = re.sub(r"^(warn|fail)  log        it is .*\n(?: {17}.*\n)*", "", text, flags=re.MULTILINE)
    return " ".join(re.sub(r"^\d+ checks: .*", "", text, flags=re.MULTILINE).split())


def test_the_manual_shows_what_is_printed(field: Field, xabridge: Xabridge) -> None:
    decided = field.gtrid(8231)
    field.decide(decided, "broker", "shop")
    field.prepare("broker", decided)
    field.prepare("shop", decided)
    field.now += 240
    field.prepare("shop", field.gtrid(114, node="orders-2", log_id=OTHER_LOG, incarnation=OTHERS))
    field.now += 100
    urls = [(name, field.url(name, scheme="shown-test")) for name in ("broker", "shop")]
    field.configure(urls=[*urls, ("analytics", field.url("analytics", socket="nowhere"))])
    assert len(SHOWN) == 5
    shown = {shlex.split(command)[-1]: (command, text) for command, text in SHOWN}
    for last in ("list", "orders-1:3fa91c:8231", "doctor", "run"):
        command, text = shown[last]
        said = xabridge(*shlex.split(command))
        assert comparable(said.out + said.err) == comparable(text), command

    gone = field.gtrid(9000)
    field.decide(gone, "broker", "billing")
    field.prepare("broker", gone)
    field.configure(urls=urls)
    command, text = shown["--yes"]
    said = xabridge(*shlex.split(command))
    assert comparable(said.err + said.out) == comparable(text), command


def test_the_manual_tells_commands_and_exit_codes_that_there_are() -> None:
    for command in MENTIONED:
        words = shlex.split(command.split("||", maxsplit=1)[0].replace('"', "").replace(")", ""))
        if words[-1] in {"recover", "completion"}:
            continue  # the name of the command itself
        if words[1:2] == ["recover"] or words[0] == "recover":
            words += ["x"] if words[-1] in {"commit", "rollback", "forget", "show"} else []
        with case(command):
            make_parser(words[0]).parse_args(words)
    table = dict(re.findall(r"^\| (\d) \| (.*?) \|", MANUAL, re.MULTILINE))
    assert {int(code) for code in table} == set(map(int, Exit))


# --- exit codes -------------------------------------------------------------------------------------------------------
RUNS = (("recover", "list"), ("recover", "run", "--dry-run"), ("recover", "run"), ("doctor",), ("check",))


def nothing(field: Field) -> None:
    field.open_log().close()


def no_log(field: Field) -> None:
    assert not field.log_folder.exists()


def damaged(field: Field) -> None:
    field.open_log().close()
    (segment,) = field.log_folder.glob("segment-*")
    segment.write_bytes(b"?" + segment.read_bytes()[1:])


def another_nodes(field: Field) -> None:
    field.open_log().close()
    field.config.write_text(field.config.read_text().replace("orders-1", "orders-9"))


def held(field: Field) -> DecisionLog:
    return field.open_log()


def waits(field: Field) -> None:
    field.open_log().close()
    field.prepare("shop", field.gtrid(1))


def elsewhere(field: Field) -> None:
    field.open_log().close()
    field.prepare("shop", field.gtrid(1, log_id=OTHER_LOG))


def unreachable(field: Field) -> None:
    field.open_log().close()
    field.configure("broker", urls=[("shop", field.url("shop", socket="nowhere"))])


def against_its_decision(field: Field) -> None:
    gtrid = field.gtrid(1)
    field.decide(gtrid, "shop")
    field.prepare("shop", gtrid)
    field.stores["shop"].complete_heuristically(xid_of(gtrid, "shop"), Code.XA_HEURRB)


def no_configuration(field: Field) -> None:
    field.config.write_text("nodes = 1\n")


STATES: dict[str, Callable[[Field], DecisionLog | None]] = {
    "nothing is in doubt": nothing,
    "there is no log yet": no_log,
    "the log is damaged": damaged,
    "the log is another node's": another_nodes,
    "another process holds the log": held,
    "a branch waits for recovery": waits,
    "a branch of this node has its decision elsewhere": elsewhere,
    "a branch was completed against its decision": against_its_decision,
    "a resource manager can't be reached": unreachable,
    "the configuration can't be read": no_configuration,
}
NOT_FORCING = "the log is in a PostgreSQL that does not force"


def codes_of(state: str) -> list[int]:
    ((_, codes),) = [(row, codes) for row, codes in EXIT_CODES.items() if row.startswith(state)]
    return codes


def ended_with(field: Field, xabridge: Xabridge) -> list[int]:
    """The exit code of each command, as the columns of the table have them."""
    copied = xabridge("log", "backup", str(field.folder / "copy"))
    shown, *others = (xabridge(*command) for command in RUNS if command != ("recover", "run"))
    run = xabridge("recover", "run")
    dry_run, doctor, check = others
    return [one.code for one in (shown, dry_run, run, doctor, check, copied)]


@pytest.mark.parametrize("state", STATES)
def test_exit_codes_are_those_of_the_table(field: Field, xabridge: Xabridge, state: str) -> None:
    assert all(any(row.startswith(one) for one in (*STATES, NOT_FORCING)) for row in EXIT_CODES)
    kept = STATES[state](field)
    assert ended_with(field, xabridge) == codes_of(state)
    if kept is not None:
        kept.close()


def test_exit_codes_where_the_log_is_not_forced(field: Field, xabridge: Xabridge, postgres: Postgres) -> None:
    """A manager does not open it; so no command says that all is well."""
    url = postgres.create_database()
    open_log(url, "orders-1").close()
    off = f"{url}?options=-csynchronous_commit%3Doff"
    field.config.write_text(field.config.read_text().replace(f"file://{field.log_folder}", off))
    assert ended_with(field, xabridge) == codes_of(NOT_FORCING)
    assert "synchronous_commit is off" in xabridge("recover", "list").words
