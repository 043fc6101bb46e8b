"""Users and their permissions: the file of users, how little an error reveals about those in it, and what management
changes: it holds at once and after a restart, nobody locks everybody out, and what was said of no one is as the files
have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtx.amqp.conditions import Condition
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.sasl.scram import Verifier
from dtx.broker.access.credentials import Credentials, CredentialsError, set_password
from dtx.broker.access.permissions import EVERYTHING, Action, Permissions, Rule
from dtx.broker.settings import Settings
from dtx.store.contract import StoreFull
from dtx.store.memory import Disk
from tests.dtx.broker.peer import World, closed, manage

# -- the file
LINE = str(Verifier.of("pencil", bytes(16), 4096))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def test_passwords_are_set_and_changed(file: Path) -> None:
    set_password(file, "alice", "one", iterations=4096)
    set_password(file, "bob of the north", "two", iterations=4096)
    set_password(file, "alice", "three", iterations=4096)
    users = Credentials.load(file)
    assert users.users == ["alice", "bob of the north"]
    alice, bob = users.verifier("alice"), users.verifier("bob of the north")
    assert alice is not None
    assert bob is not None
    assert alice.accepts("three")
    assert not alice.accepts("one")
    assert bob.accepts("two")
    assert users.verifier("Alice") is None


def test_the_file_holds_no_password_and_is_its_owners(file: Path) -> None:
    set_password(file, "alice", "open sesame", iterations=4096)
    assert "sesame" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in file.parent.iterdir()] == ["users"]


def test_names_that_are_not_there_look_as_if_they_were(file: Path) -> None:
    """Also where the file was written by hand."""
    set_password(file, "alice", "one", iterations=5000)
    users, again = Credentials.load(file), Credentials.load(file)
    decoy = users.decoy("mallory")
    assert decoy == again.decoy("mallory") != users.decoy("marlon")
    known = users.verifier("alice")
    assert known is not None
    assert (decoy.iterations, len(decoy.salt)) == (known.iterations, len(known.salt))
    set_password(file, "bob", "two", iterations=5000)
    assert Credentials.load(file).decoy("mallory") == decoy, "who comes and goes changes nothing for those not there"
    file.write_text(f"# users of the broker\n\n{LINE} alice\n{LINE} bob smith\n")
    users = Credentials.load(file)
    assert users.users == ["alice", "bob smith"]
    assert users.decoy("x") == Credentials.load(file).decoy("x")


def test_a_wrong_line_is_named(file: Path) -> None:
    with pytest.raises(CredentialsError, match="No such file"):
        Credentials.load(file)
    for text, says in (
        (f"{LINE} alice\nnonsense bob\n", "line 2: not a verifier"),
        (f"{LINE} alice\n{LINE} alice\n", "line 2: the name 'alice'"),
        (f"{LINE} anonymous\n", "line 1: the name 'anonymous' is reserved"),
        (f"{LINE} *\n", "reserved"),
        (f"{LINE}\n", "line 1: a name or password is empty"),
        ("decoy !\n", "line 1"),
    ):
        file.write_text(text)
        with pytest.raises(CredentialsError, match=says):
            Credentials.load(file)


def test_impossible_names_and_passwords_are_refused(file: Path) -> None:
    for user, password in (("anonymous", "x"), ("*", "x"), ("a\nb", "x"), (" a", "x"), ("", "x"), ("a", "")):
        with pytest.raises(CredentialsError):
            set_password(file, user, password)
    assert not file.exists()


# -- what management changes
OLD = Verifier.of("old", b"salt", 4096)
NEW = Verifier.of("new", b"salt", 4096)


class WithUsers(World):
    """A node with a file of users: alice and the operator."""

    def __init__(
        self, settings: Settings | None = None, permissions: Permissions | None = None, disk: Disk | None = None
    ) -> None:
        self.credentials = Credentials({"alice": OLD, "operator": OLD}, b"decoy")
        begun_with = Permissions({"operator": EVERYTHING, "alice": Rule(consume=("orders",))})
        super().__init__(settings, permissions or begun_with, disk, credentials=self.credentials)

    def crash(self) -> WithUsers:
        return WithUsers(self.settings, self.permissions, self.disk)


def may_produce(world: World, user: str) -> bool:
    """Whether a user may send to orders now."""
    return not closed(world.connect(user).sender("orders"))


def test_a_user_is_added_and_changed_without_a_restart() -> None:
    world = WithUsers()
    operator = world.connect("operator")
    for name in ("bob", "alice"):
        assert manage(operator, operation="set-user", user=name, verifier=str(NEW)) == {}
    for other in (world, world.crash()):
        assert other.credentials.verifier("bob") == other.credentials.verifier("alice") == NEW
        assert other.credentials.verifier("operator") == OLD
        told = {one["name"]: one for one in manage(other.connect("operator"), operation="users")}
        assert [told[name]["password-from"] for name in ("alice", "bob", "operator")] == ["store", "store", "file"]
    assert str(NEW) not in json.dumps(manage(operator, operation="audit"), default=str)


def test_permissions_change_at_once_and_stay() -> None:
    world = WithUsers()
    operator = world.connect("operator")
    assert not may_produce(world, "alice")
    rule = json.dumps({"produce": ["orders"], "create": ["*"]})
    assert manage(operator, operation="set-permissions", user="alice", rule=rule) == {}
    for other in (world, world.crash()):
        assert may_produce(other, "alice")
        assert not other.container.permissions.may(Identity("alice"), Action.CONSUME, "orders")
    assert manage(operator, operation="remove-permissions", user="alice") == {}
    for other in (world, world.crash()):
        assert not may_produce(other, "alice")
        assert "alice" not in other.container.permissions.rules
    assert "alice" in world.permissions.rules, "the configuration is as it was"


def test_a_user_that_is_removed_is_sent_away_and_stays_away() -> None:
    world = WithUsers()
    alice, operator = world.connect("alice"), world.connect("operator")
    assert manage(operator, operation="remove-user", user="alice") == {}
    assert alice.server.closed
    for other in (world, world.crash()):
        assert other.credentials.users == ["operator"]
        assert [one["name"] for one in manage(other.connect("operator"), operation="users")] == ["operator"]
    assert manage(operator, operation="remove-user", user="alice").condition == Condition.NOT_FOUND


def test_nobody_locks_himself_out() -> None:
    world = WithUsers()
    operator = world.connect("operator")
    for told in (
        {"operation": "remove-user"},
        {"operation": "remove-permissions"},
        {"operation": "set-permissions", "rule": '{"view": true}'},
    ):
        assert manage(operator, user="operator", **told).condition == Condition.ILLEGAL_STATE
    assert manage(operator, operation="create-queue", queue="q") == {}


def test_what_is_wrong_is_refused() -> None:
    world = WithUsers()
    operator = world.connect("operator")
    for told in (
        {"operation": "set-user", "user": "bob", "verifier": "secret"},
        {"operation": "set-user", "user": "*", "verifier": str(NEW)},
        {"operation": "set-user", "user": "", "verifier": str(NEW)},
        {"operation": "set-permissions", "user": "bob", "rule": '{"comsume": []}'},
        {"operation": "set-permissions", "user": "bob", "rule": "no JSON"},
    ):
        assert manage(operator, **told).condition == Condition.INVALID_FIELD
    assert not world.disk.records


def test_users_are_changed_by_those_who_may_manage() -> None:
    world = WithUsers(permissions=Permissions({"viewer": Rule(view=True)}))
    viewer = world.connect("viewer")
    for operation in ("set-user", "remove-user", "set-permissions", "remove-permissions"):
        assert manage(viewer, operation=operation, user="alice").condition == Condition.UNAUTHORIZED


def test_what_the_store_does_not_take_does_not_hold() -> None:
    world = WithUsers()
    operator = world.connect("operator")
    world.fault = StoreFull("no space in the store")
    for asked in (
        {"operation": "set-user", "verifier": str(NEW)},
        {"operation": "remove-user"},
        {"operation": "set-permissions", "rule": "{}"},
    ):
        assert manage(operator, user="alice", **asked).condition == Condition.RESOURCE_LIMIT
    assert world.credentials.verifier("alice") == OLD
    assert world.container.permissions.rules["alice"] == Rule(consume=("orders",))
    told = {one["name"]: one for one in manage(operator, operation="users")}
    assert (told["alice"]["password-from"], told["alice"]["rule-from"]) == ("file", "file")


def test_a_broker_without_a_file_of_users_has_none() -> None:
    """Whatever an earlier one has noted in the store."""
    before = WithUsers()
    assert manage(before.connect("operator"), operation="set-user", user="bob", verifier=str(NEW)) == {}
    refusal = manage(World(disk=before.disk).connect(), operation="set-user", user="bob", verifier=str(NEW))
    assert "start it with --users" in refusal.description
