"""Users and their permissions: the file of users, how little an error reveals about those in it, and what management
changes: it holds at once and after a restart, nobody locks everybody out, and what was said of no one is as the files
have it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from proton import ulong

from dtx.amqp.conditions import Condition
from dtx.amqp.sasl import ClientPolicy, SaslClient, SaslServer, ServerPolicy
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.sasl.scram import Verifier, accepting
from dtx.broker.access.credentials import Credentials, CredentialsError, set_password
from dtx.broker.access.permissions import EVERYTHING, Action, Permissions, Rule
from dtx.broker.settings import Settings
from dtx.store.contract import Batch, StoreDamaged, StoredRecord, StoreFull
from dtx.store.memory import Disk
from tests.cases import each
from tests.dtx.amqp.test_sasl import talk
from tests.dtx.broker.peer import Peer, World, closed, manage

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
    assert accepting((alice,), "three")
    assert not accepting((alice,), "one")
    assert accepting((bob,), "two")
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
        self,
        settings: Settings | None = None,
        permissions: Permissions | None = None,
        disk: Disk | None = None,
        seconds: float = 1_000_000.0,
    ) -> None:
        self.credentials = Credentials({"alice": OLD, "operator": OLD}, b"decoy")
        begun_with = Permissions({"operator": EVERYTHING, "alice": Rule(consume=("orders",))})
        super().__init__(settings, permissions or begun_with, disk, credentials=self.credentials, seconds=seconds)

    def crash(self, later_s: float = 0.0) -> WithUsers:
        """Another node on what was forced, `later_s` seconds later by the wall clock."""
        return WithUsers(self.settings, self.permissions, self.disk, self.clock.seconds + later_s)

    def signs_in(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Identity | None:
        """Who a client is that signs in with this password; None: it is refused."""
        is_scram = mechanism == "SCRAM-SHA-256"
        policy = ServerPolicy(self.credentials, plain=not is_scram, scram=is_scram)
        server = SaslServer(policy, encrypted=True, certified=None, nonce=os.urandom)
        talk(SaslClient(ClientPolicy(user, password), encrypted=True, hostname="", nonce=os.urandom), server)
        return server.identity

    def connect_with(self, user: str, password: str) -> Peer:
        """A peer that has signed in with this password."""
        identity = self.signs_in(user, password)
        assert identity is not None
        peer = Peer(self, identity)
        self.peers.append(peer)
        self.pump()
        return peer


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


def test_no_user_locks_itself_out() -> None:
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


# -- two passwords
HOUR_S = 3600
DAY_S = 24 * HOUR_S
MECHANISMS = ("SCRAM-SHA-256", "PLAIN")


def rotated(world: WithUsers, hours: float = 24, **more: Any) -> Any:
    """Alice gets the password `new`, and keeps `old` for so long."""
    asked: dict[str, Any] = {"user": "alice", "verifier": str(NEW), "keep-old-ms": ulong(int(hours * HOUR_S * 1000))}
    return manage(world.connect("operator"), operation="set-user", **(asked | more))


def valid(world: WithUsers, mechanism: str = "SCRAM-SHA-256") -> list[str]:
    """Which passwords alice can sign in with."""
    return [one for one in ("old", "new", "other") if world.signs_in("alice", one, mechanism)]


def alice_of(world: World) -> Any:
    """What management says of alice."""
    (found,) = (one for one in manage(world.connect("operator"), operation="users") if one["name"] == "alice")
    return found


@each("mechanism", MECHANISMS)
def test_the_old_password_is_valid_until_its_end(mechanism: str) -> None:
    world = WithUsers()
    assert rotated(world) == {}
    assert valid(world, mechanism) == valid(world, mechanism) == ["old", "new"]
    world.pass_time(DAY_S - 1)
    assert alice_of(world)["old-password-left-ms"] == 1000
    assert valid(world, mechanism) == valid(world.crash(), mechanism) == ["old", "new"]
    world.clock.seconds += 1  # and nothing has looked yet
    assert valid(world, mechanism) == ["new"]
    world.pass_time(1)
    assert valid(world, mechanism) == valid(world.crash(), mechanism) == ["new"]
    assert alice_of(world)["old-password-left-ms"] is None
    assert str(OLD) not in "".join(record.text for record in world.disk.records.values() if "alice" in record.text)
    assert manage(world.connect("operator"), operation="audit")[0]["what"] == "end-old-password"


def test_without_a_time_the_old_password_ends_at_once() -> None:
    world = WithUsers()
    assert rotated(world, 0) == {}
    assert valid(world) == valid(world.crash()) == ["new"]


def test_a_clock_that_is_set_prolongs_nothing() -> None:
    world = WithUsers()
    rotated(world, 1)
    world.clock.set_s = -DAY_S
    assert valid(world) == ["old", "new"]
    world.pass_time(HOUR_S)
    assert valid(world) == ["new"], "an hour has passed, whatever the clock says"
    assert valid(world.crash(-2 * DAY_S)) == ["new"], "and it is written down that it has ended"

    world = WithUsers()
    rotated(world, 1)
    later = world.crash(-DAY_S)
    assert alice_of(later)["old-password-left-ms"] == HOUR_S * 1000, "no longer than it was to be kept"
    world = WithUsers()
    rotated(world, 1)
    world.clock.set_s = DAY_S
    world.pass_time(2)
    world.clock.set_s = 0
    assert valid(world) == valid(world.crash()) == ["new"], "what has ended once stays so"


def test_an_end_while_the_broker_was_down_is_written_down_at_its_start() -> None:
    world = WithUsers()
    rotated(world, 1)
    assert valid(world.crash(2 * HOUR_S)) == ["new"]
    assert valid(world.crash()) == ["new"], "also for one whose clock was set back again"


def test_the_end_holds_where_the_store_does_not_take_it_and_is_written_later() -> None:
    world = WithUsers()
    rotated(world, 1)
    world.fault = StoreFull("no space in the store")
    world.pass_time(HOUR_S)
    assert valid(world) == ["new"]
    world.fault = None
    world.pass_time(2)
    assert valid(world.crash(-HOUR_S)) == ["new"]


def test_a_third_password_and_another_salt_are_refused() -> None:
    world = WithUsers()
    third = str(Verifier.of("other", b"salt", 4096))
    for more, condition in (
        ({"verifier": str(Verifier.of("new", b"tlas", 4096))}, Condition.INVALID_FIELD),
        ({"verifier": str(Verifier.of("new", b"salt", 5000))}, Condition.INVALID_FIELD),
        ({"verifier": str(OLD)}, Condition.INVALID_FIELD),
        ({"keep-old-ms": ulong(31 * DAY_S * 1000)}, Condition.INVALID_FIELD),
        ({"user": "bob"}, Condition.NOT_FOUND),
    ):
        assert rotated(world, **more).condition == condition, more
    assert valid(world) == ["old"]

    rotated(world)
    assert "two passwords already" in rotated(world, verifier=third).description
    assert valid(world) == ["old", "new"]
    assert rotated(world, 0, verifier=third) == {}
    assert valid(world) == valid(world.crash()) == ["other"], "one that is set without a time ends both"


def test_a_revoked_password_closes_the_connections_that_signed_in_with_it() -> None:
    world = WithUsers()
    by_old = world.connect_with("alice", "old")
    rotated(world)
    by_new = world.connect_with("alice", "new")
    assert not by_old.server.closed
    assert alice_of(world)["old-password-connections"] == 1
    assert manage(world.connect("operator"), operation="revoke-old-password", user="alice") == {}
    assert (by_old.server.closed, by_new.server.closed) == (True, False)
    assert valid(world) == valid(world.crash()) == ["new"]
    again = manage(world.connect("operator"), operation="revoke-old-password", user="alice")
    assert again.condition == Condition.ILLEGAL_STATE


def test_connections_outlast_the_end_of_their_password_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Until somebody revokes it."""
    world = WithUsers()
    by_old = world.connect_with("alice", "old")
    rotated(world, 1)
    world.pass_time(2 * HOUR_S)
    assert not by_old.server.closed
    assert alice_of(world)["old-password-connections"] == 1
    assert (
        "the old password of alice has ended; connections that signed in with it and are open still: 1" in caplog.text
    )
    (ended, *_) = manage(world.connect("operator"), operation="audit")
    assert (ended["what"], ended["about"]) == ("end-old-password", {"user": "alice", "connections": 1})
    shown = manage(world.connect("operator"), operation="connections")
    assert [one["user"] for one in shown if one["old-password"]] == ["alice"]
    assert manage(world.connect("operator"), operation="revoke-old-password", user="alice") == {}
    assert by_old.server.closed


def test_a_password_that_ends_while_somebody_signs_in_with_it_is_refused() -> None:
    world = WithUsers()
    rotated(world, 1)
    server = SaslServer(ServerPolicy(world.credentials), encrypted=False, certified=None, nonce=os.urandom)
    client = SaslClient(ClientPolicy("alice", "old"), encrypted=False, hostname="", nonce=os.urandom)
    for _ in range(2):  # up to the salt
        server.feed(client.output())
        client.feed(server.output())
    world.clock.seconds += HOUR_S
    talk_on(client)
    talk(client, server)
    assert server.identity is None
    assert "wrong name or password" in str(server.failure)


def talk_on(client: SaslClient) -> None:
    """Computes what the client has to compute."""
    if client.computation is not None:
        client.computed(client.computation())


@each(("user", "password"), [("alice", "wrong"), ("alice", "old"), ("alice", "new"), ("stranger", "wrong")])
def test_two_passwords_cost_one_computation(user: str, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = WithUsers()
    rotated(world)
    counted: list[int] = []
    compute = hashlib.pbkdf2_hmac

    def computed(name: str, said: bytes, salt: bytes, iterations: int) -> bytes:
        counted.append(iterations)
        return compute(name, said, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", computed)
    right = world.signs_in(user, password, "PLAIN") is not None
    assert counted == [4096]
    assert (world.signs_in(user, password, "PLAIN") is not None) == right
    assert counted == [4096] * (1 if right else 2), "what was right once is known, of both"


def test_changes_of_one_user_do_not_overtake_each_other() -> None:
    """The end of the old password, say, must not bring back what a change under way replaces."""
    world = WithUsers()
    operator = world.connect("operator")
    rotated(world, 1)
    world.clock.seconds += HOUR_S
    container = world.container
    third = Verifier.of("other", b"tlas", 4096)

    batch = Batch()
    change = container.accounts.write_user(batch, "alice", third)
    container.resource.submit(batch, lambda _error: change.done())
    container.resource.tick()
    world.pump()
    assert valid(world) == valid(world.crash()) == ["other"]

    batch = Batch()
    change = container.accounts.write_user(batch, "alice", NEW)
    refusal = manage(operator, operation="set-user", user="alice", verifier=str(third))
    assert "another change of alice" in refusal.description
    change.undone()
    assert manage(operator, operation="set-user", user="alice", verifier=str(third)) == {}


@each(
    "value",
    [
        {"verifier": str(NEW)},
        {"verifier": str(NEW), "old": "x", "kept_ms": 1, "until_ms": 1},
        {"verifier": str(NEW), "old": str(OLD), "kept_ms": "long", "until_ms": 1},
        {"verifier": str(NEW), "old": str(OLD), "kept_ms": 1, "until_ms": [1]},
    ],
)
def test_a_damaged_record_of_two_passwords_is_a_damaged_store(value: dict[str, Any]) -> None:
    world = WithUsers()
    rotated(world)
    (number,) = (number for number, one in world.disk.records.items() if one.kind == "user")
    world.disk.records[number] = StoredRecord(number, "user", json.dumps(["alice", value]))
    with pytest.raises(StoreDamaged):
        world.crash()


def test_the_salt_is_for_those_who_may_manage() -> None:
    world = WithUsers(permissions=Permissions({"operator": EVERYTHING, "viewer": Rule(view=True)}))
    answer = manage(world.connect("operator"), operation="user-salt", user="alice")
    assert answer == {"salt": b"salt", "iterations": 4096}
    for operation in ("user-salt", "revoke-old-password"):
        refusal = manage(world.connect("viewer"), operation=operation, user="alice")
        assert refusal.condition == Condition.UNAUTHORIZED
