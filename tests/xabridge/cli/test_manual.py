"""These tests check docs/recover.md: the output that it shows is what the commands print, and every command in it
exists.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from tests.xabridge.cli.field import OTHER_LOG, OTHERS, ROOT
from xabridge.cli.exits import Exit
from xabridge.cli.main import make_parser

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xabridge.cli.field import Field, Said

MANUAL = (ROOT / "docs" / "recover.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```console\n\$ xabridge ([^\n]*)\n(.*?)^```", MANUAL, re.DOTALL | re.MULTILINE)
MENTIONED = sorted(set(re.findall(r"`xabridge ((?:recover|doctor|completion) ?[^`|>]*)`?", MANUAL)))


def comparable(text: str) -> str:
    """Without line breaks, which depend on the length of a path, and without what differs by machine and moment."""
    text = re.sub(r"forced in [0-9.]+ ms|within [0-9.]+ s|\s+\(next\s+try\s+in\s+[^)]*\)", "", text)
    text = re.sub(r"^(warn|fail)  log        it is .*\n(?: {17}.*\n)*", "", text, flags=re.MULTILINE)
    return " ".join(re.sub(r"^\d+ checks: .*", "", text, flags=re.MULTILINE).split())


def test_what_it_shows_is_what_is_printed(field: Field, xabridge: Callable[..., Said]) -> None:
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


@pytest.mark.parametrize("command", MENTIONED)
def test_every_command_is_one(command: str) -> None:
    words = shlex.split(command.split("||", maxsplit=1)[0].replace('"', "").replace(")", ""))
    if words[-1] in {"recover", "doctor", "completion"} and words[-1] != "doctor":
        return  # the name of the command itself
    if words[1:2] == ["recover"] or words[0] == "recover":
        words += ["x"] if words[-1] in {"commit", "rollback", "forget", "show"} else []
    make_parser(words[0]).parse_args(words)


def test_it_tells_every_exit_code() -> None:
    table = dict(re.findall(r"^\| (\d) \| (.*?) \|", MANUAL, re.MULTILINE))
    assert {int(code) for code in table} == set(map(int, Exit))
