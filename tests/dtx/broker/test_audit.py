"""The audit log: what was done, refused and failed, and who has signed in; how little strangers can write into it, and
that they push out nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from proton import ulong

from dtx.amqp.conditions import Condition
from dtx.amqp.sasl.layer import SASL_HEADER
from dtx.amqp.values import Symbol
from dtx.broker.access import audit
from dtx.broker.access.audit import MANY_NETWORKS, MOST_BEGUN, MOST_WRITTEN, PERIOD_S, WRITE_S, Outcome
from dtx.broker.access.permissions import EVERYTHING, Permissions, Rule
from dtx.broker.broker import Broker
from dtx.store.contract import StoreFull
from tests.dtx.broker.peer import World, manage
from tests.dtx.broker.sockets import Line, sasl, serving, until

RULES = {"operator": EVERYTHING, "viewer": Rule(view=True), "shop": Rule(consume=("*",), produce=("*",))}


@pytest.fixture
def world() -> World:
    return World(permissions=Permissions(RULES))


def audited(world: World, **more: Any) -> list[dict[str, Any]]:
    """The entries."""
    found: list[dict[str, Any]] = manage(world.connect("operator"), operation="audit", **more)
    return found


def outcomes(world: World, **more: Any) -> list[tuple[str, str, str, int]]:
    """Who, what, outcome and count of each entry."""
    return [(one["who"], one["what"], one["outcome"], one["count"]) for one in audited(world, **more)]


def written(world: World) -> list[str]:
    """The entries in the store."""
    return [record.text for record in world.disk.records.values() if record.kind == "audit"]


def signed_in(world: World, user: str, network: str, outcome: Outcome = Outcome.DONE) -> None:
    world.container.audit.signed_in(user, network, outcome)


def test_each_outcome_is_told_and_survives(world: World) -> None:
    operator, viewer, shop = (world.connect(name) for name in ("operator", "viewer", "shop"))
    assert manage(operator, operation="create-queue", queue="q") == {}
    assert manage(operator, operation="create-queue", queue="q").condition == Condition.NOT_ALLOWED
    world.fault = StoreFull("no space in the store")
    assert manage(operator, operation="pause-queue", queue="q").condition == Condition.RESOURCE_LIMIT
    world.fault = None
    for _ in range(3):
        assert manage(viewer, operation="purge", queue="q").condition == Condition.UNAUTHORIZED
        assert manage(shop, operation="queues").condition == Condition.UNAUTHORIZED
    world.pass_time(WRITE_S)

    for other in (world, world.crash()):
        assert outcomes(other) == [
            ("shop", "management", "refused", 3),
            ("viewer", "purge", "refused", 3),
            ("operator", "pause-queue", "failed", 1),
            ("operator", "create-queue", "refused", 1),
            ("operator", "create-queue", "done", 1),
        ]

    purge, pause = audited(world)[1:3]
    assert (purge["why"], purge["about"], purge["from"]) == (
        "viewer may not manage this broker",
        {"queue": "q"},
        "memory",
    )
    assert pause["why"] == "no space in the store"


def test_the_newest_by_the_time_that_is_shown_stand_first_on_every_page(world: World) -> None:
    """A sum that began before a change, and went on after it; and a clock that was put back."""
    operator = world.connect("operator")
    signed_in(world, "shop", "10.0.0.1")
    world.pass_time(60.0)
    manage(operator, operation="create-queue", queue="q")
    world.pass_time(60.0)
    signed_in(world, "shop", "10.0.0.1")
    world.pass_time(WRITE_S)
    world.clock.seconds -= 100.0
    manage(operator, operation="pause-queue", queue="q")

    for one in (world, world.crash()):
        found = audited(one)
        assert [entry["what"] for entry in found] == ["sign-in", "create-queue", "pause-queue"]
        pages, after = [], ""
        for _ in range(3):
            (entry,) = audited(one, after=after, count=ulong(1))
            pages.append(entry["what"])
            after = entry["id"]
        assert pages == ["sign-in", "create-queue", "pause-queue"]
        assert audited(one, after=after) == []


def test_what_is_read_is_counted(world: World) -> None:
    operator = world.connect("operator")
    operator.fill("q", "a")
    (message,) = manage(operator, operation="messages", queue="q")
    for number in (message["id"], message["id"], "ffff"):
        manage(operator, operation="read", queue="q", id=number)
    assert outcomes(world) == [("operator", "read", "refused", 1), ("operator", "read", "done", 2)]


def test_entries_are_chosen_by_who_and_what(world: World) -> None:
    operator, viewer = world.connect("operator"), world.connect("viewer")
    for queue in ("a", "b"):
        manage(operator, operation="create-queue", queue=queue)
        manage(viewer, operation="create-queue", queue=queue)
    manage(operator, operation="purge", queue="a")
    manage(operator, operation="pause-queue", queue="a")

    assert len(audited(world, who="viewer")) == 2
    assert [one["what"] for one in audited(world, who="op*", what="*-queue")] == [
        "pause-queue",
        "create-queue",
        "create-queue",
    ]
    newest = audited(world, what="create-queue", count=ulong(1))
    rest = audited(world, what="create-queue", after=newest[0]["id"])
    assert len(rest) == 3
    assert audited(world, who="o") == audited(world, what="queue*") == []


def test_an_entry_has_the_address_of_the_browser_that_a_console_asks_for(world: World) -> None:
    operator = world.connect("operator")
    assert manage(operator, operation="create-queue", queue="q", browser="192.0.2.7") == {}
    assert manage(operator, operation="purge", queue="x", browser="2001:db8::1").condition == Condition.NOT_FOUND
    assert [(one["from"], one["browser"]) for one in audited(world)] == [
        ("memory", "2001:db8::1"),
        ("memory", "192.0.2.7"),
    ]
    for lie in ("<script>", "192.0.2.7\n", "x" * 2000, 7):
        assert manage(operator, operation="create-queue", queue="r", browser=lie).condition == Condition.INVALID_FIELD


# -- sums
def test_sign_ins_are_summed_for_an_hour(world: World) -> None:
    for _ in range(3):
        signed_in(world, "shop", "192.0.2.7")
        world.pass_time(60)
    signed_in(world, "shop", "192.0.2.8")
    signed_in(world, "shop", "192.0.2.7", Outcome.REFUSED)
    world.pass_time(PERIOD_S)
    signed_in(world, "shop", "192.0.2.7")
    world.pass_time(WRITE_S)

    for other in (world, world.crash()):
        assert [(one["from"], one["outcome"], one["count"]) for one in audited(other, what="sign-in")] == [
            ("192.0.2.7", "done", 1),
            ("192.0.2.7", "refused", 1),
            ("192.0.2.8", "done", 1),
            ("192.0.2.7", "done", 3),
        ]
    summed = audited(world)[-1]
    assert summed["when"] - summed["first"] == 120_000


def test_a_stranger_who_fails_a_million_times_pushes_out_nothing(world: World) -> None:
    operator = world.connect("operator")
    manage(operator, operation="create-queue", queue="q")
    signed_in(world, "operator", "192.0.2.1")
    signed_in(world, "shop", "192.0.2.2", Outcome.REFUSED)
    for number in range(5_000):
        signed_in(world, "", f"2001:db8:{number:x}::/64", Outcome.REFUSED)
    world.pass_time(WRITE_S)

    assert len(written(world)) <= MOST_WRITTEN + 1, "a few rows every ten seconds"
    for _ in range(3):
        world.pass_time(WRITE_S)
    entries = audited(world.crash(), count=ulong(1000))
    assert len(entries) == len(written(world)) == MOST_BEGUN + 3
    assert {("operator", "create-queue"), ("operator", "sign-in"), ("shop", "sign-in")} <= {
        (one["who"], one["what"]) for one in entries
    }
    (more,) = (one for one in entries if one["from"] == MANY_NETWORKS)
    assert (more["who"], more["count"]) == ("an unknown user", 5_000 - MOST_BEGUN + 1)


def test_a_user_without_rights_has_one_sum_and_is_named_behind_any_flood(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_BEGUN", 10)
    shop, viewer = world.connect("shop"), world.connect("viewer")
    for number in range(15):
        manage(viewer, operation="purge", queue=f"q{number}")
    for operation in ("purge", "queues", "nonsense", "x" * 500):
        manage(shop, operation=operation)
    assert outcomes(world, who="shop") == [("shop", "management", "refused", 4)]
    assert [one["count"] for one in audited(world, who="viewer")] == [5, *[1] * 10]


def test_groups_keep_their_last_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_SUMS", 10)
    for number in range(25):
        signed_in(world, "shop", f"192.0.2.{number}")
        signed_in(world, "shop", f"192.0.2.{number // 5}", Outcome.REFUSED)
    world.pass_time(WRITE_S)
    assert len(written(world)) == 15
    for other in (world, world.crash()):
        assert [one["from"] for one in audited(other, what="sign-in") if one["outcome"] == "done"] == [
            f"192.0.2.{number}" for number in range(24, 14, -1)
        ]


def test_what_the_store_does_not_take_is_written_later(world: World) -> None:
    signed_in(world, "shop", "192.0.2.7")
    world.fault = StoreFull("no space in the store")
    world.pass_time(WRITE_S)
    assert written(world) == []
    world.fault = None
    world.pass_time(WRITE_S)
    assert outcomes(world.crash()) == [("shop", "sign-in", "done", 1)]


def test_nothing_is_written_where_nothing_happens(world: World) -> None:
    signed_in(world, "shop", "192.0.2.7")
    world.pass_time(WRITE_S)
    before = dict(world.disk.records)
    for _ in range(20):
        world.pass_time(WRITE_S)
    assert world.disk.records == before


# -- at a socket
@pytest.mark.parametrize(
    ("user", "password", "who", "outcome"),
    [
        ("shop", "right", "shop", "done"),
        ("shop", "wrong", "shop", "refused"),
        ("right", "shop", "an unknown user", "refused"),
        ("a\x1b[2J", "x", "an unknown user", "refused"),
    ],
)
def test_a_sign_in_is_entered_without_what_a_stranger_has_typed(
    tmp_path: Path, user: str, password: str, who: str, outcome: str
) -> None:
    async def served() -> None:
        async with serving(tmp_path, users=("shop",), wrong_password_s=0.0) as broker:
            assert await entered(broker, user, password) == [(who, "sign-in", outcome, "127.0.0.1")]
        async with serving(tmp_path, users=("shop",)) as broker:
            assert [entry.who for _, entry in broker.container.audit.newest()] == [who]

    asyncio.run(served())


async def entered(broker: Broker, user: str, password: str) -> list[tuple[str, str, str, str]]:
    """What stands in the audit log after this sign-in."""
    line = await Line.to(broker)
    line.say(SASL_HEADER + sasl(0x41, Symbol("PLAIN"), f"\0{user}\0{password}".encode()))
    entries = broker.container.audit
    await until(lambda: bool(entries.newest()))
    line.close()
    found = [json.loads(str(entry)) for _, entry in entries.newest()]
    assert "\x1b" not in json.dumps(found)
    return [(one["who"], one["what"], one["outcome"], one["address"]) for one in found]
