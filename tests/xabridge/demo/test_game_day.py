"""These tests play the game day as a person does by the guide, and look at its parts: what the site shows, the prompt,
what is refused.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli import parsed
from tests.docs.guide import ROOT
from xa.telemetry.conditions import AWAY, CONDITIONS, DEAD_LETTERS, NO_CONSUMERS
from xabridge.cli import main
from xabridge.demo.display import Display
from xabridge.demo.game_day import FAULTS, Fault, GameDay, sights_of
from xabridge.demo.game_day.game_day import NOT_REPAIRED, REPAIRED
from xabridge.demo.game_day.sights import NoMetrics, Sample, text_of
from xabridge.demo.game_day.site import trouble_of
from xabridge.demo.shop.audit import ShopAudit
from xabridge.testing.ports import free_port

PAGE = """\
# HELP xabridge_broker_condition Of all queues and branches, those that a condition holds for.
xabridge_broker_condition{xabridge_condition="no-consumers"} 2.0
xabridge_broker_condition{xabridge_condition="store-full"} 0.0
xabridge_broker_condition{xabridge_condition="dead-letters"} 1.0
xabridge_broker_condition_worst{xabridge_condition="no-consumers",messaging_destination_name="few \\"odd\\" ones"} 4.0
xabridge_broker_condition_worst{xabridge_condition="no-consumers",messaging_destination_name="many"} 70.0
"""


@pytest.fixture
def serving(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a process that shows a page, with the status that the test asks for."""
    status: int = getattr(request, "param", 200)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_the_rules_ask_for_is_seen_with_the_text_of_the_alarm(serving: str) -> None:
    gone = f"127.0.0.1:{free_port()}"
    seen = sights_of({"broker": serving, "node-1": gone})
    assert [(sight.condition, sight.text) for sight in seen] == [
        (AWAY, f"xabridge-node-1 {gone} does not answer"),
        (DEAD_LETTERS, f"messages of {serving} became dead letters"),
        (NO_CONSUMERS, f'queues of {serving} that have messages and no consumers: 2, the worst: many few "odd" ones'),
    ]


@pytest.mark.parametrize("serving", [501], indirect=True)
def test_without_metrics_it_says_so(serving: str) -> None:
    with pytest.raises(NoMetrics):
        sights_of({"broker": serving})


def test_each_alarm_has_a_text_without_a_template() -> None:
    for condition in CONDITIONS:
        assert "{" not in text_of(condition, Sample("a", {}, 61.0), ["q"])


def test_a_broker_with_a_full_disk_is_not_called_not_ready() -> None:
    assert trouble_of("broker", 200, {"ready": True, "full": True}) == "the disk of broker is full"
    assert trouble_of("broker", 503, {"ready": False, "full": True}) == "broker is not ready"
    assert trouble_of("node-1", 0, {}) == "node-1 is not ready"
    assert trouble_of("broker", 200, {"ready": True, "full": False}) == ""


def test_what_is_typed_are_commands_of_ours_and_of_the_supervisor() -> None:
    for fault in FAULTS:
        for command in (fault.look, *fault.steps):
            program, *words = shlex.split(command)
            assert program in {"xabridge", "start", "stop", "restart", "rm", "cp"}, command
            if program == "xabridge":
                parsed([re.sub(r"\$\w+", "http://127.0.0.1:1/x", word) for word in words])


def test_the_guide_has_each_fault_with_its_steps() -> None:
    """docs/operations.md, and the section of its first alarm."""
    guide = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = guide.partition("\n## A game day\n")[2].partition("\n## ")[0]
    for fault in FAULTS:
        assert fault.conditions[0].anchor.removeprefix("docs/") in section, fault.name
        for step in fault.steps:
            assert f"`{step}`" in section, step


# --- the game ---------------------------------------------------------------------------------------------------------


class Ruin:
    """A site that is well when the right thing was typed."""

    folder = Path("/somewhere")
    disk_trouble = "mount: Operation not permitted"
    operator_password = "secret"  # noqa: S105 — of a double

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.typed: list[str] = []
        self.left = ""

    def carry_out(self, command: str, *, captured: bool) -> tuple[int, str]:
        self.typed.append(command)
        if command == "repair":
            self.left = ""
        return 0, "" if captured else "done"

    def missing(self) -> str:
        return self.left

    def prove(self) -> ShopAudit:
        return ShopAudit(3, 0, 3, 3, 0, 0, 0, 0, ("a", "a", "a"))


def _break(site: Any, orders: int) -> str:
    site.left = f"{orders} orders wait"
    return "something that takes more than one line to say what it is, on a terminal of sixty columns and not more"


BROKEN = Fault("broken", "it is broken", _break, "a mishap", (), "look", ("repair",))
FULL_DISK = Fault("full-disk", "a disk is full", _break, "a mishap", (), "look", ("repair",))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "SEEN_S", "WELL_S", "SETTLED_S", "SILENT_S"):
        monkeypatch.setattr(f"xabridge.demo.game_day.game_day.{name}", 0.0)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((60, 24)))


def _game(site: Ruin, *typed: str, auto: bool = False) -> GameDay:
    waiting = list(typed)

    def ask(_: str) -> str:
        if not waiting:
            raise KeyboardInterrupt
        return waiting.pop(0)

    return GameDay(site, Display(live=False, quiet=False), 3, auto=auto, ask=ask)  # type: ignore[arg-type]  # a double


@pytest.mark.usefixtures("quick")
def test_a_person_types_until_it_is_repaired(capsys: pytest.CaptureFixture[str]) -> None:
    site = Ruin()
    result = _game(site, "", "steps", "try this", "repair").play([BROKEN])
    assert result["exact"]
    assert [fault["outcome"] for fault in result["faults"]] == [REPAIRED]
    assert site.typed == ["look", "try this", "repair"]
    said = capsys.readouterr().out
    assert "    repair\n" in said
    assert said.count("3 orders wait") == 4
    assert max(map(len, said.splitlines())) < 60


@pytest.mark.usefixtures("quick")
def test_interrupted_it_says_where_it_stood(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        _game(Ruin(), "try this").play([BROKEN, BROKEN])
    assert "interrupted in 1 of 2: it is broken" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_what_the_steps_do_not_repair_ends_the_game(capsys: pytest.CaptureFixture[str]) -> None:
    class Hopeless(Ruin):
        def carry_out(self, command: str, *, captured: bool) -> tuple[int, str]:
            return 1, f"{command}: no, {captured}"

    result = _game(Hopeless(), auto=True).play([BROKEN, BROKEN])
    assert not result["exact"]
    assert [fault["outcome"] for fault in result["faults"]] == [NOT_REPAIRED]
    said = capsys.readouterr().out
    assert "(exit code 1)" in said
    assert "3 orders wait" in said


@pytest.mark.usefixtures("quick")
def test_without_a_small_disk_that_fault_is_left_out_and_the_game_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    result = _game(Ruin(), auto=True).play([FULL_DISK, BROKEN])
    assert result["exact"]
    assert result["faults"][0]["outcome"].startswith("left out")
    assert "1 of 2 left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--auto"], "--auto is for --game-day"),
        (["--game-day"], "not a terminal: pass --auto"),
        (["--game-day", "--auto", "--mode", "decider"], "goes without"),
    ],
)
def test_what_does_not_go_together_is_refused(
    flags: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--folder", str(tmp_path / "demo"), *flags]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_fault_is_shown_and_repaired_by_the_steps_of_the_guide_and_nothing_is_lost(tmp_path: Path) -> None:
    """It takes some thirty seconds of processor time: six faults, each with commands in processes of their own."""
    command = [sys.executable, "-m", "xabridge.cli", "demo", "--game-day", "--auto", "--json"]
    done = subprocess.run(
        [*command, "--folder", tmp_path / "demo"], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["exact"]
    assert [result[key] for key in ("lost", "duplicated", "split", "in_doubt", "waiting")] == [0] * 5
    assert result["orders"] == result["rows"] == result["invoices"] >= 20 * (len(FAULTS) - 1)

    assert [played["fault"] for played in result["faults"]] == [fault.name for fault in FAULTS]
    for fault, played in zip(FAULTS, result["faults"], strict=True):
        if played["outcome"].startswith("left out: no small disk"):
            continue
        assert played["outcome"] == REPAIRED
        seen = {one["condition"] for one in played["seen"]}
        assert seen & {condition.name for condition in fault.conditions}, fault.name
