"""These tests move messages from a broker that decides by local transactions to one that is prepared, each in a process
of its own. At every step in turn they kill with SIGKILL the client, one of the brokers, or all of them.

After recovery every message must be at one of the two brokers, once, and the outcomes that the application got must be
true.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from rm_amqp.decider.tokens import Token
from tests.crash.test_amqp_kill import Field, Site, some_of
from tests.crash.together import POINTS, Together
from tests.simulation.seeds import EVERY_POINT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 2
STEPS = {
    "start": ("before start in", "after start in"),
    "work": ("between work", "before end in", "after end in"),
    "prepare": ("before prepare out", "after prepare out"),
    "decide": ("before decide in", "before token"),
    "token": ("after token", "before discharge"),
    "discharge": ("after discharge", "answered discharge"),
    "decided": ("after decide in", "before commit out"),
    "commit": ("after commit out", "before end_decisions in"),
}


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    with ExitStack() as stack:
        field = Field(tmp_path, "tests.crash.decider_child")
        for site in field.sites.values():
            stack.callback(site.remove)
        yield field


def check(field: Field) -> None:
    """Checks what the module's docstring promises, and that every decision has ended."""
    field.check()
    with field.source.client() as source:
        for slot in range(3):
            (body,) = source.look(f"xabridge.tokens.{slot}")
            assert Token.decode(body).decided == ()


@pytest.mark.slow
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("victim", ["in", "out"])
def test_a_broker_is_killed(field: Field, victim: str, steps: str) -> None:
    """The application goes on when it is back."""
    some = some_of(STEPS[steps], 0 if victim == "in" else 1)
    for deaths, step in enumerate(some, 1):
        field.feed(step)
        assert field.run(f"{step} {COUNT}", victim) == 0, step
        assert field.sites[victim].deaths == deaths, step
    field.recover(steps)
    check(field)


@pytest.mark.slow
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("victims", [("self",), ("in", "out", "self")], ids=["client", "all"])
def test_the_client_is_killed(field: Field, victims: tuple[str, ...], steps: str) -> None:
    """Alone, or with both brokers at the same moment."""
    for step in some_of(STEPS[steps], 1 if victims == ("self",) else 0):
        field.feed(step)
        assert field.run(f"{step} {COUNT}", *victims) == -9, step
        field.recover(step)
    check(field)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("dies", [0, 1], ids=["of a node by itself", "with a sibling"])
def test_several_nodes_and_siblings_share_a_token_queue(tmp_path: Path, dies: int) -> None:
    with ExitStack() as stack:
        source, target = Site(tmp_path / "in"), Site(tmp_path / "out")
        stack.callback(source.remove)
        stack.callback(target.remove)
        together = Together(source, target)
        for point in POINTS if EVERY_POINT else POINTS[dies::2]:
            together.run(dies, point)
        together.finish()
        together.check()
