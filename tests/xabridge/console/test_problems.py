"""The conditions as the overview says them: in words, with a page, and an answer to each question that is fine, trouble
or not known yet."""

from __future__ import annotations

from typing import Any

import pytest

from dtx.broker.conditions import MEASURED
from xa.telemetry.conditions import BY_NAME, CONDITIONS, Question
from xabridge.console.problems import ProblemList, Problems


def of_broker(name: str, count: int, *worst: tuple[str, float], looked: float | None = 1.0) -> Problems:
    """What is shown if this is all that a broker has found."""
    problems = ProblemList()
    found = {"name": name, "count": count, "worst": [{"name": of, "value": value} for of, value in worst]}
    problems.add_broker("main", {"looked": looked, "conditions": [found]})
    return problems.put_together


@pytest.mark.parametrize(
    ("name", "count", "worst", "said", "page"),
    [
        (
            "no-consumers", 1000, [("q9", 9.0), ("q8", 8.0), ("q7", 7.0), ("q6", 6.0)],
            "1000 queues of main have messages and no consumers: q9 (9), q8 (8), q7 (7) and 997 more",
            "/queues?broker=main&by=depth",
        ),
        (
            "old-messages", 2, [("a", 4000.0), ("b", 1000.0)],
            "2 queues of main have old messages: a (66 m) and b (16 m)", "/queues?broker=main&by=oldest",
        ),
        ("queue-paused", 1, [("a&b", 8.0)], "1 queue of main is paused: a&b (8)", "/b/main/queue?name=a%26b"),
        (
            "dead-letters", 1, [("q.dead", 5.0)], "1 queue of main has new dead letters: q.dead (5)",
            "/dead?broker=main&queue=q.dead",
        ),
        ("branch-in-doubt", 3, [("xid", 1900.0)], "3 branches at main in doubt, the oldest for 31 m", "/transactions"),
        (
            "store-full", 1, [],
            "main: the broker's disk is full: the reserve is released, producers are refused, consumers go on",
            "/queues?broker=main",
        ),
    ],
)  # fmt: skip
def test_a_condition_of_a_broker_in_words(
    name: str, count: int, worst: list[tuple[str, float]], said: str, page: str
) -> None:
    (problem,) = of_broker(name, count, *worst).found
    assert (problem.condition, problem.said, problem.page) == (BY_NAME[name], said, page)


@pytest.mark.parametrize("condition", MEASURED, ids=lambda condition: condition.name)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_condition_of_a_broker_can_be_said(condition: Any, count: int) -> None:
    (problem,) = of_broker(condition.name, count, *[(f"q{number}", 700.0) for number in range(min(count, 5))]).found
    assert "main" in problem.said
    assert of_broker(condition.name, 0).found == ()


def test_the_answers() -> None:
    """Trouble, if one condition holds; else not known yet, if someone has not answered; else fine."""
    fine = of_broker("queue-paused", 0)
    assert [fine.state(question) for question in Question] == ["fine"] * 3
    assert [fine.look(question) for question in Question] == ["good"] * 3

    paused = of_broker("queue-paused", 1, ("q", 1.0))
    assert [paused.state(question) for question in Question] == ["trouble", "fine", "fine"]
    assert paused.look(Question.FLOW) == "warn"
    early = of_broker("queue-paused", 0, looked=None)
    assert [early.state(question) for question in Question] == ["not known yet"] * 3
    assert early.silent == [("broker main", "it has not looked at all of its queues yet")]

    problems = ProblemList()
    problems.add_silent("broker", "main", "it has not answered yet", "#flow", away=False)
    assert {problems.put_together.state(question) for question in Question} == {"not known yet"}
    problems.add_silent("broker", "second", "refused", "#flow", away=True)
    both = problems.put_together
    assert [both.state(question) for question in Question] == ["trouble", "not known yet", "not known yet"]
    assert both.look(Question.FLOW) == "wrong"
    assert [problem.said for problem in both.found] == ["broker second is away: refused"]


def test_who_has_not_said_what_is_in_doubt() -> None:
    """A resource that is down is a condition; a broker or a node is one only if it is away, and is named once."""
    problems = ProblemList()
    problems.add_silent("broker", "main", "refused", "#flow", away=True)
    problems.add_unasked({"main": "refused", "node b": "it has not answered yet", "shop": "no route"}, ["main"])
    found = problems.put_together
    assert [problem.said for problem in found.found] == ["broker main is away: refused", "shop: no route"]
    assert found.silent == [("node b", "it has not answered yet")]


def test_a_broker_that_is_older_or_newer_hides_nothing() -> None:
    """An older one looks for nothing; of a newer one's conditions those that are known here are shown."""
    problems = ProblemList()
    problems.add_broker("old", None)
    assert problems.put_together.state(Question.STUCK) == "not known yet"
    assert of_broker("of a newer version", 7).found == ()

    problems.add_versions({"broker old": "", "broker new": "0.3", "this console": "0.3"})
    (problem,) = problems.put_together.found
    assert problem.said == "several versions are at work: an older one: broker old; 0.3: broker new and this console"
    same = ProblemList()
    same.add_versions({"broker new": "0.3", "this console": "0.3"})
    assert same.put_together.found == ()


@pytest.mark.parametrize(
    ("ahead_s", "uncertain_s", "said"),
    [
        (4.9, 0.0, []),
        (7.0, 2.5, []),
        (7.6, 2.5, ["the clock of main is 7 s ahead of the console’s"]),
        (-3600.0, 0.1, ["the clock of main is 60 m behind the console’s"]),
    ],
)
def test_clocks_are_compared_as_far_as_the_way_there_lets(ahead_s: float, uncertain_s: float, said: list[str]) -> None:
    problems = ProblemList()
    problems.add_clock("main", ahead_s, uncertain_s)
    assert [problem.said for problem in problems.put_together.found] == said


def test_the_most_urgent_stands_first_and_nothing_twice() -> None:
    problems = ProblemList()
    for condition in (*reversed(CONDITIONS), *CONDITIONS):
        problems.add(condition, condition.means, "/")
    assert [problem.condition for problem in problems.put_together.found] == list(CONDITIONS)
