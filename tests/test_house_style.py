"""These tests check that our own checks of style find what they look for."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from tools.house_style import LONG, WORD, unbroken


def function(*body: str) -> str:
    return "def work():\n" + indent("\n".join(body), "    ") + "\n"


STATEMENTS = [f"step({number})" for number in range(LONG + 1)]


def test_a_long_function_without_a_blank_line_is_found() -> None:
    assert list(unbroken(function('"""Works.\n\n    Long."""', *STATEMENTS))) == [1]


@pytest.mark.parametrize(
    "body",
    [
        STATEMENTS[:-1],
        [*STATEMENTS[:5], "", *STATEMENTS[5:]],
        ["return [", *(f"    {number}," for number in range(LONG + 1)), "]"],
    ],
    ids=["short", "with a blank line", "a table"],
)
def test_other_functions_are_not(body: list[str]) -> None:
    assert not list(unbroken(function(*body)))


def test_words_are_counted_in_names_and_sentences() -> None:
    source = dedent(
        """
        told = untold = is_told  # Nobody mends it, whoever heard of it
        """
    )
    assert len(WORD.findall(source)) == 6
