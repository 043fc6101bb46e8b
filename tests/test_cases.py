"""These tests check that `each` tries every case, and names those that fail."""

from __future__ import annotations

import inspect
import itertools

import pytest

from tests.cases import each


def test_every_case_is_tried_with_every_other_and_fixtures_are_left_to_pytest() -> None:
    seen: list[tuple[int, str, str]] = []

    @each("number", range(3))
    @each(("letter", "place"), [("a", 1), ("b", 2)])
    def looped(number: int, letter: str, place: int, fixture: str) -> None:
        assert letter == "ab"[place - 1]
        seen.append((number, letter, fixture))

    assert list(inspect.signature(looped).parameters) == ["fixture"]
    looped(fixture="f")
    assert seen == [(*one, "f") for one in itertools.product(range(3), "ab")]


def test_a_case_that_fails_is_named_and_those_behind_it_are_tried() -> None:
    tried: list[int] = []

    @each("number", range(4))
    def looped(number: int) -> None:
        tried.append(number)
        assert number % 2 == 0, "odd"

    with pytest.raises(ExceptionGroup, match="2 of 4 cases failed") as raised:
        looped()
    assert tried == [0, 1, 2, 3]
    assert [error.__notes__ for error in raised.value.exceptions] == [["case: number=1"], ["case: number=3"]]
