"""These tests cover permissions: patterns, rules, and a broker without users."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtx.amqp.sasl.mechanisms import Identity
from dtx.broker.access.permissions import (
    Action,
    Management,
    Permissions,
    PermissionsError,
    Rule,
    is_loopback,
    open_to_this_machine,
    open_to_users,
)
from tests.cases import each

ANYBODY, ALICE, BOB, OPERATOR = Identity(""), Identity("alice"), Identity("bob"), Identity("operator")

TABLE = Permissions.from_section(
    {
        "alice": {"consume": ["orders", "audit.*"], "coordinate": "own"},
        "operator": {"coordinate": "all", "manage": True},
        "*": {"produce": ["invoices.*"], "create": ["tmp-*"]},
        "anonymous": {"consume": ["public"]},
    }
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


@each(
    ("identity", "owner", "allowed"),
    [
        (ALICE, "alice", True),
        (ALICE, "bob", False),
        (BOB, "bob", False),
        (OPERATOR, "alice", True),
        (ANYBODY, "", False),
    ],
)
def test_branches_are_coordinated_by_their_owner_or_by_whom_it_was_granted(
    identity: Identity, owner: str, allowed: bool
) -> None:
    """So is management."""
    assert TABLE.may_coordinate(identity, owner) is allowed
    assert TABLE.may_manage(identity, Management.MANAGE) is (identity is OPERATOR)
    assert TABLE.may_manage(identity, Management.VIEW) is (identity is OPERATOR)


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_a_star_stands_for_any_text(pattern: str, address: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), address) is not None
    assert Rule(consume=(pattern,)).allows(Action.CONSUME, address) is expected


def test_a_long_address_against_many_stars_takes_no_time() -> None:
    assert not Rule(consume=("*a" * 200 + "b",)).allows(Action.CONSUME, "a" * 20_000)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"alice": ["orders"]}, "expected a table"),
        ({"alice": {"consume": "orders"}}, "consume is a list"),
        ({"alice": {"consume": [1]}}, "consume is a list"),
        ({"alice": {"coordinate": "some"}}, "none, own or all"),
        ({"alice": {"coordinate": []}}, "none, own or all"),
        ({"alice": {"manage": "yes"}}, "true or false"),
        ({"alice": {"comsume": ["orders"]}}, "unknown comsume"),
    ],
)
def test_a_wrong_table_is_told_in_a_sentence(section: dict[str, Any], says: str) -> None:
    with pytest.raises(PermissionsError, match=f"permissions of 'alice': .*{says}"):
        Permissions.from_section(section)


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
