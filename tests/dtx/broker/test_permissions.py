"""Permissions: patterns, rules, a broker without users, and what a user with few of them or none may not do, hold, or
take from others."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtx.amqp.conditions import Condition
from dtx.amqp.encoding import encode
from dtx.amqp.messages import body_value
from dtx.amqp.sasl.mechanisms import Identity, external_server
from dtx.amqp.values import Described, Uint, Ulong
from dtx.broker.access.credentials import set_password
from dtx.broker.access.permissions import (
    Action,
    Management,
    Permissions,
    PermissionsError,
    Rule,
    is_loopback,
    open_to_this_machine,
    open_to_users,
    rule_of_json,
)
from dtx.broker.broker import Broker
from dtx.broker.config import Address, BrokerConfig
from dtx.broker.settings import Limits, Settings
from dtx.protocol.addresses import COORDINATION, MANAGEMENT
from dtx.protocol.commands import Declare, Fence, Prepare, Recover, Rollback, Start
from dtx.protocol.conditions import Refusal
from dtx.protocol.replies import Recovered, decode_reply
from dtx.store.contract import Batch
from tests.dtx.broker.peer import OK, Coordinator, World, closed, frame
from xa import Code, Xid
from xa.configuration import ConfigurationError, Section

# -- rules
ANYBODY, ALICE, BOB, OPERATOR = Identity(""), Identity("alice"), Identity("bob"), Identity("operator")

TABLE = Permissions.from_section(
    Section(
        {
            "alice": {"consume": ["orders", "audit.*"], "coordinate": "own"},
            "operator": {"coordinate": "all", "manage": True},
            "*": {"produce": ["invoices.*"], "create": ["tmp-*"]},
            "anonymous": {"consume": ["public"]},
        }
    )
)


@pytest.mark.parametrize(
    ("identity", "action", "address", "allowed"),
    [
        (ALICE, Action.CONSUME, "orders", True),
        (ALICE, Action.CONSUME, "orders2", False),
        (ALICE, Action.CONSUME, "audit.2024.x", True),
        (ALICE, Action.PRODUCE, "orders", False),
        (ALICE, Action.PRODUCE, "invoices.eu", True),
        (BOB, Action.PRODUCE, "invoices.eu", True),
        (BOB, Action.CONSUME, "orders", False),
        (BOB, Action.CREATE, "tmp-1", True),
        (ANYBODY, Action.CONSUME, "public", True),
        (ANYBODY, Action.PRODUCE, "invoices.eu", False),
        (Identity("anonymous"), Action.CREATE, "tmp-1", True),
    ],
)
def test_addresses(identity: Identity, action: Action, address: str, allowed: bool) -> None:
    assert TABLE.may(identity, action, address) is allowed


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_a_star_stands_for_any_text(pattern: str, address: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), address) is not None
    assert Rule(consume=(pattern,)).allows(Action.CONSUME, address) is expected


def test_a_long_address_against_many_stars_takes_no_time() -> None:
    assert not Rule(consume=("*a" * 200 + "b",)).allows(Action.CONSUME, "a" * 20_000)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (["orders"], ": expected a table"),
        ({"consume": "orders"}, ".consume: expected a list of address patterns, not 'orders'"),
        ({"consume": [1]}, ".consume: expected a list of address patterns, not [1]"),
        ({"coordinate": "some"}, '.coordinate: expected "none", "own" or "all", not \'some\''),
        ({"coordinate": []}, ".coordinate: expected"),
        ({"coordinate": "${ALL}"}, ".coordinate: expected"),
        ({"manage": "yes"}, ".manage: expected true or false, not 'yes'"),
        ({"comsume": ["orders"]}, "(did you mean consume?)"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_key(rule: Any, says: str) -> None:
    with pytest.raises(PermissionsError, match=f"permissions.alice.*{re.escape(says)}"):
        rule_of_json("alice", json.dumps(rule))
    with pytest.raises(ConfigurationError, match=f"alice.*{re.escape(says)}"):
        Permissions.from_section(Section({"alice": rule}))


def test_what_a_client_sends_has_no_variables_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read the broker's environment."""
    monkeypatch.setenv("PASSWORD", "s3cret")
    assert rule_of_json("alice", '{"consume": ["${PASSWORD}"]}').consume == ("${PASSWORD}",)


def test_a_broker_without_users_is_open_to_its_machine_and_says_so() -> None:
    """And does not start where others could reach it. With users and no table it is open to them and to nobody else."""
    permissions, notice = open_to_this_machine(["127.0.0.1", "::1", "localhost"])
    assert permissions.may(ANYBODY, Action.PRODUCE, "anything")
    assert permissions.may_coordinate(ANYBODY, "")
    assert permissions.may_manage(ANYBODY, Management.MANAGE)
    assert notice.startswith("no users are configured: everybody on this machine may do everything")
    for host in ("0.0.0.0", "::", "10.0.0.1", "broker.example", ""):  # noqa: S104
        assert not is_loopback(host)
        with pytest.raises(PermissionsError, match="everybody could do everything"):
            open_to_this_machine(["127.0.0.1", host])
    permissions, notice = open_to_users(["127.0.0.1"])
    assert permissions.may(Identity("alice"), Action.CONSUME, "anything")
    assert not permissions.may(ANYBODY, Action.CONSUME, "anything")
    assert notice.startswith("no permissions are configured")


# -- whoever has few
WORK = {"consume": ["*"], "produce": ["*"], "create": ["*"]}
OWN = {**WORK, "coordinate": "own"}


def world_of(limits: Limits = Limits(), **rules: Any) -> World:  # noqa: B008 — it is frozen
    return World(Settings(limits=limits), Permissions.from_section(Section(rules)))


def xid(number: int, gtrid: bytes = b"global") -> Xid:
    return Xid(1, gtrid, b"%d" % number)


def begun(world: World, user: str, branch: Xid) -> tuple[Coordinator, bytes]:
    control = world.connect(user).coordinator()
    return control, control.declare(Start(branch))


def kept_out(world: World, user: str, branch: Xid) -> Refusal:
    """Why a user may not begin a branch."""
    return world.connect(user).coordinator().refused(Declare(Start(branch)))


# --- recovering -----------------------------------------------------------------------------------------------
def test_recover_is_not_dearer_for_the_branches_of_others() -> None:
    """Nor is a fence. Who has one branch of a thousand finds it, and is not shown the others."""
    world = world_of(worker=OWN, other=OWN)
    own = Xid(1, b"between", b"1")
    peer = world.connect("worker")

    def seconds() -> float:
        times = []
        for number in range(5):
            began = time.process_time()
            for turn in range(10):
                assert peer.ask(Recover()) == Recovered((own,))
                assert peer.ask(Recover(after=own)) == Recovered(())
                assert peer.ask(Fence(1, b"%d %d" % (number, turn))) == OK
            times.append(time.process_time() - began)
        return min(times)

    peer.prepared(own, posts="orders")
    alone = seconds()
    batch, first = Batch(), world.store.first_number + 1000
    for number, (word, count) in enumerate(itertools.product((b"after", b"behind"), range(1000))):
        batch.prepare(first + number, Xid(1, word + b"%d" % count), "other", 1)
    world.store.submit(batch, lambda _: None)
    world.pump()
    world = world.crash()
    peer = world.connect("worker")
    assert world.container.registry.in_doubt_count == 2001
    assert seconds() < 2 * alone
    assert peer.ask(Rollback(own)) == OK
    assert peer.ask(Recover()) == Recovered(())


# --- preparing ------------------------------------------------------------------------------------------------
def test_who_may_coordinate_no_branch_does_not_prepare_one_with_its_end() -> None:
    """Nor does it set a fence."""
    world = world_of(worker=WORK, owner=OWN, manager={"coordinate": "all"})
    control, txn_id = begun(world, "worker", xid(1))
    control.peer.post(control.peer.sender("orders"), "held", txn_id)
    _, _, refusal = control.end(txn_id, prepare=True)
    assert refusal is not None
    assert refusal.condition == Condition.UNAUTHORIZED
    assert world.container.registry.in_doubt_count == 0
    assert control.end(txn_id)[2] is None, "it can still be ended"
    assert world.connect("manager").ask(Prepare(xid(1))) == OK
    assert control.peer.refusal(Fence(1, b"global")).condition == Condition.UNAUTHORIZED
    control, txn_id = begun(world, "owner", xid(2))
    control.peer.post(control.peer.sender("orders"), "held", txn_id)
    assert control.end(txn_id, prepare=True)[2] is None
    assert world.container.registry.in_doubt_count == 2


@pytest.mark.parametrize("address", [COORDINATION, MANAGEMENT])
def test_nothing_is_decoded_of_a_request_of_whom_it_is_refused_to(address: str) -> None:
    """What the request says is no AMQP, and is not looked at."""
    world = world_of(worker=WORK, operator={"coordinate": "own", "view": True})
    wrong = b"\xc1\x03\x02\xff\xff"
    told: dict[str, str] = {}
    for user in ("worker", "operator"):
        peer = world.connect(user)
        replies, requests = peer.receiver(None, 10), peer.sender(address)
        properties = encode(Described(Ulong(0x73), ["1", None, None, None, str(replies.remote_source.address)]))
        octets = properties + b"\x00\x53\x74" + wrong + b"\x00\x53\x77" + wrong
        peer.send_octets(requests, octets, "t", settled=True)
        world.pump()
        assert replies.current is not None
        answer = decode_reply(body_value(bytes(replies.recv(replies.current.pending) or b"")))
        assert isinstance(answer, Refusal)
        told[user] = answer.condition
    assert told == {"worker": Condition.UNAUTHORIZED, "operator": Condition.DECODE_ERROR}


# --- branches -------------------------------------------------------------------------------------------------


def test_rollback_only_branches_make_room() -> None:
    """And are forgotten soon."""
    world = world_of(Limits(branches=6, branches_per_user=3), **{"*": OWN})
    control = world.connect("hungry").coordinator()
    for number in range(50):
        control.end(control.declare(Start(xid(number))), fail=True)
    assert len(world.container.registry) == 3
    for user in ("one", "two"):
        begun(world, user, xid(100, user.encode()))
        begun(world, user, xid(101, user.encode()))

    assert len(world.container.registry) == 6
    refusal = world.connect("hungry").refusal(Prepare(xid(0)))
    assert refusal.code is Code.XAER_NOTA, "forgotten means rolled back, as it is"
    control.end(control.declare(Start(xid(0))), fail=True)
    count = len(world.container.registry)
    world.pass_time(59)
    assert len(world.container.registry) == count
    world.pass_time(2)
    assert len(world.container.registry) < count


def test_branches_in_doubt_count_for_their_owner_behind_a_restart() -> None:
    world = world_of(Limits(branches_per_user=1), worker=OWN)
    world.connect("worker").prepared(xid(1), posts="orders")
    assert kept_out(world.crash(), "worker", xid(2)).condition == Condition.RESOURCE_LIMIT


# --- fences ---------------------------------------------------------------------------------------------------


def test_a_fence_of_who_may_coordinate_its_own_keeps_its_own_out_and_nobody_else() -> None:
    world = world_of(owner=OWN, stranger=OWN, manager={**WORK, "coordinate": "all"})
    assert world.connect("stranger").ask(Fence(1, b"global")) == OK
    begun(world, "owner", xid(1))
    assert kept_out(world, "stranger", xid(2)).code is Code.XA_RBOTHER
    again = world.crash()
    begun(again, "owner", xid(3))
    kept_out(again, "stranger", xid(2))
    assert again.connect("manager").ask(Fence(1, b"global")) == OK
    kept_out(again, "owner", xid(4))
    assert again.connect("stranger").ask(Fence(1, b"global", lift=True)) == OK
    kept_out(again, "stranger", xid(2))  # the manager's stands


def test_one_user_does_not_use_up_the_fences_nor_the_branches_of_all() -> None:
    limits = Limits(branches=5, branches_per_user=3, fences_per_user=2)
    world = world_of(limits, **{"*": OWN})
    hungry, other = world.connect("hungry"), world.connect("other")
    assert [hungry.ask(Fence(1, b"%d" % number)) == OK for number in range(3)] == [True, True, False]
    assert other.ask(Fence(1, b"x")) == OK
    assert hungry.ask(Fence(1, b"0", lift=True)) == OK
    assert hungry.ask(Fence(1, b"2")) == OK
    control = hungry.coordinator()
    for number in range(3):
        control.declare(Start(xid(number)))
    refusal = control.refused(Declare(Start(xid(3))))
    assert refusal.condition == Condition.RESOURCE_LIMIT
    assert "hungry has 3 branches" in str(refusal.description)
    other.coordinator().declare(Start(xid(10)))


# --- names ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["anonymous", "*"])
def test_a_certificate_does_not_name_everybody_or_nobody(name: str) -> None:
    assert external_server(b"", name).identity is None
    table = Permissions.from_section(Section({"anonymous": {"consume": ["secret"]}, "*": {"produce": ["public"]}}))
    assert table.may(Identity(name), Action.CONSUME, "secret") is False


def test_an_address_is_not_cut_at_a_nul() -> None:
    """The permission was checked, and the queue opened, for what stands before it."""
    world = world_of(worker={"consume": ["orders"], "produce": ["orders"]}, manager=WORK)
    world.connect("manager").sender("orders")
    for receiver in (True, False):
        termini = [Described(Ulong(0x28), []), Described(Ulong(0x29), [])]
        termini[not receiver] = Described(termini[not receiver].descriptor, ["orders\0.secret"])
        peer = world.connect("worker")
        before = len(peer.server.links)
        peer.inject(frame(0x12, ["link", Uint(7), receiver, None, None, *termini, None, None, Uint(0)]))
        assert len(peer.server.links) == before
    assert not closed(world.connect("worker").receiver("orders"))


# --- where it listens -----------------------------------------------------------------------------------------
def test_a_broker_with_users_and_no_permissions_listens_on_this_machine_only(tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(users, "alice", "secret", iterations=4096)

    async def start(host: str) -> None:
        store = f"sqlite:///{tmp_path}/broker.db"
        Broker(BrokerConfig(listen=(Address(host, 0),), users=users, store=store))

    asyncio.run(start("127.0.0.1"))
    with pytest.raises(PermissionsError, match=r"no permissions are configured, and the broker listens on 0\.0\.0\.0"):
        asyncio.run(start("0.0.0.0"))  # noqa: S104
