"""The list of conditions: names by which alerts, lines of the console and sections of the guide find each other, and
commands that there are."""

from __future__ import annotations

import re
import shlex

import pytest

from xa.telemetry.conditions import BY_NAME, CONDITIONS, Condition, Level
from xabridge.cli.main import make_parser


def test_each_name_is_one_of_its_own_and_an_anchor() -> None:
    assert len(BY_NAME) == len(CONDITIONS)
    assert len({condition.alert for condition in CONDITIONS}) == len(CONDITIONS)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", condition.name) for condition in CONDITIONS)


def test_the_most_urgent_stand_first() -> None:
    levels = [condition.level for condition in CONDITIONS]
    assert levels == sorted(levels, key=[Level.PAGE, Level.TICKET].index)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_the_first_action_is_a_command_as_it_stands(condition: Condition) -> None:
    program, *words = shlex.split(condition.command)
    assert program == "xabridge"
    if words != ["--version"]:
        make_parser(whole=True).parse_args(words)
