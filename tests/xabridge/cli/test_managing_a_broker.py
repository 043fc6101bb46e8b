"""These tests run `xabridge broker ACTION` against a broker: what it shows, in 60 columns and as JSON, and what it
does."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dtx.broker.access.credentials import set_password
from dtx.broker.access.permissions import EVERYTHING, Permissions
from rm_amqp import Message
from rm_amqp.management import ManagementClient
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.cli.field import Typed
from tests.xabridge.traffic import Traffic, post
from xa import TMSUCCESS, XaError, Xid
from xabridge import text
from xabridge.cli import main
from xabridge.cli.broker import changes, tables, views
from xabridge.testing.contract.client import case
from xabridge.testing.ports import free_port

XID = Xid(1, b"gtrid", b"b")
LONG = "a-queue-with-a-name-that-takes-a-line-of-its-own." + "x" * 30


class Shell:
    """Runs `xabridge broker`."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capsys = capsys
        self.error = ""

    def run(self, *words: str) -> tuple[int, str]:
        """The exit code and stdout; stderr is in `error`."""
        self._capsys.readouterr()
        code = main(["broker", *words, "--url", self._url])
        captured = self._capsys.readouterr()
        self.error = captured.err
        return code, captured.out

    def lines(self, *words: str) -> list[str]:
        """The lines of a command that succeeds; each of them fits the narrowest terminal."""
        code, out = self.run(*words)
        assert code == 0, self.error
        return out.splitlines()

    def value(self, *words: str) -> Any:
        """What a command that succeeds prints as JSON."""
        code, out = self.run(*words, "--json")
        assert code == 0, self.error
        return json.loads(out)


@pytest.fixture
def shell(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command, for this broker."""
    return Shell(f"amqp://{broker.address}/?timeout=20", capsys)


@pytest.fixture
def traffic(broker: EmbeddedBroker) -> Iterator[Traffic]:
    """Somebody who works with it."""
    with closing(Traffic(f"amqp://{broker.address}/?timeout=20")) as made:
        yield made


def letters(*bodies: Any) -> list[Message]:
    return [Message(body) for body in bodies]


@pytest.mark.slow
def test_what_there_is_is_shown_in_sixty_columns(broker: EmbeddedBroker, traffic: Traffic, shell: Shell) -> None:
    traffic.post("orders", *letters("a", "b", "c"))
    post(f"amqp://{broker.address}/?timeout=20", LONG, Message("x"))
    traffic.prepare(XID, "orders", "invoices")
    lines = shell.lines("queues")
    assert max(map(len, (line for line in lines if line != LONG))) <= tables.WIDTH
    assert lines[0].split() == ["QUEUE", "DEPTH", "HELD", "SIZE", "OLDEST", "CONS", "IN/S", "OUT/S"]
    at = lines.index(next(line for line in lines if line.startswith("orders")))
    assert lines[at].split()[1:3] == ["3", "1"]
    assert lines[at + 1].startswith("    1 held by prepared branch")
    assert lines[lines.index(LONG) + 1].split()[0] == "1"
    (orders,) = shell.value("queues", "ord*")
    assert (orders["name"], orders["depth"], orders["held"], orders["came"]) == ("orders", 3, 1, 3)
    assert orders["octets"] > 0
    assert abs(orders["oldest"] / 1000 - time.time()) < 60
    assert shell.lines("messages", "orders", "--most", "2")[-1] == "there are more: --most N shows them"
    assert len(shell.value("messages", "orders", "--most", "2")) == 2
    assert len(shell.lines("messages", "orders", "--most", "3")) == 4

    mine = [one for one in shell.value("connections") if "operator" not in one["container"]]
    assert sum(one["received"] for one in mine) >= 1
    assert {one["user"] for one in mine} == {"anonymous"}
    (consumer,) = [one for one in shell.value("links", "--queue", "orders") if one["kind"] == "consume"]
    assert (consumer["direction"], consumer["messages"]) == ("out", 1)
    (branch,) = shell.value("branches")
    assert branch["holds"]["orders"] == {"retired": 1, "posted": 0}
    for what in ("connections", "links", "branches"):
        assert max(map(len, shell.lines(what))) <= tables.WIDTH, what
    assert any(line.split()[-2:] == ["from", "orders"] for line in shell.lines("branches"))
    assert shell.lines("connections", "--user", "nobody") == ["no connections"]
    traffic.rm.rollback(XID, 1)
    assert shell.lines("branches") == ["no branches"]

    (setting,) = shell.value("configuration", "limits.queues")
    assert setting == {"name": "limits.queues", "value": "10000", "from": "default"}
    assert "limits.queues = 10000" in shell.lines("configuration")
    assert shell.lines("configuration", "--changed") == ["no settings"]
    assert broker.address in shell.lines("configuration", "listen")[0]


def test_a_broker_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(f"amqp://127.0.0.1:{free_port()}/?timeout=5", capsys)
    assert shell.run("queues") == (4, "")
    assert "can't be reached" in shell.error
    shell = Shell("http://127.0.0.1", capsys)
    assert shell.run("queues") == (2, "")


def test_watching_looks_again_until_it_is_interrupted(
    traffic: Traffic, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([None, None])

    def interrupted(_seconds: float) -> None:
        traffic.post("orders", Message("more"))
        if next(looks, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr("xabridge.cli.broker.views.time.sleep", interrupted)
    code, out = shell.run("queues", "orders", "--watch", "1s", "--json")
    assert code == 0
    assert [[queue["depth"] for queue in json.loads(line)] for line in out.splitlines()] == [[], [1], [2]]


def depths(shell: Shell) -> dict[str, int]:
    """By queue."""
    return {queue["name"]: queue["depth"] for queue in shell.value("queues")}


def test_dead_letters_are_found_read_and_retried(traffic: Traffic, shell: Shell) -> None:
    traffic.post("orders", *letters("first", "second \x1b[2J"))
    traffic.reject("orders", 2)
    lines = shell.lines("dead")
    assert max(map(len, lines)) <= tables.WIDTH
    assert [line.strip() for line in lines[2:4]] == ["in orders.dead", "from orders: rejected"]
    (group,) = shell.value("dead", "orders.dead")
    assert (group["letters"], group["from"], group["why"]) == (2, "orders", "rejected")
    assert "    from orders: rejected" in shell.lines("dead", "--all")
    (first, second) = shell.value("dead", "orders.dead", "--all")
    assert (first["from"], first["why"], first["queue"]) == ("orders", "rejected", "orders.dead")
    assert shell.lines("read", "orders.dead", second["id"])[-1] == r"second \x1b[2J"
    assert shell.value("read", "orders.dead", first["id"])["body"] == "first"

    assert shell.lines("retry", "orders.dead", "--dry-run") == [
        "would retry 2 messages of orders.dead to where they came from"
    ]
    assert depths(shell) == {"orders": 0, "orders.dead": 2}
    assert shell.lines("retry", "orders.dead", "--id", first["id"]) == ["1 message done"]
    assert shell.value("retry", "orders.dead") == {"done": 1, "left": {}}
    assert depths(shell) == {"orders": 2, "orders.dead": 0}
    assert shell.lines("dead") == ["no dead letters"]
    assert [one["deliveries"] for one in shell.value("messages", "orders")] == [0, 0]
    assert max(map(len, shell.lines("messages", "orders", "--most", "1"))) <= tables.WIDTH
    assert [one["what"] for one in shell.value("audit", "--what", "retry")] == ["retry", "retry"]
    assert any("retry: queue orders.dead" in line for line in shell.lines("audit"))


def test_what_is_lost_is_confirmed(traffic: Traffic, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic.post("orders", *letters(*range(3)))
    assert shell.run("purge", "orders") == (5, "")
    assert "pass --yes; nothing was done" in shell.error
    monkeypatch.setattr("sys.stdin", Typed("no\n"))
    assert shell.run("purge", "orders") == (5, "")
    assert depths(shell) == {"orders": 3}
    monkeypatch.setattr("sys.stdin", Typed("yes\n"))

    assert shell.run("purge", "orders", "--most", "1") == (0, "1 message done\n")
    assert depths(shell) == {"orders": 2}
    assert shell.run("delete", "orders", "--yes") == (5, "")
    assert "has messages (2)" in shell.error
    assert shell.lines("delete", "orders", "--yes", "--force") == [
        "done: delete orders with its messages, and close its links"
    ]
    assert depths(shell) == {}
    assert shell.run("purge", "orders", "--yes") == (5, "")


@pytest.mark.parametrize(
    "words", [("purge", "a.dead"), ("move", "a.dead", "a"), ("retry", "a.dead"), ("copy", "a.dead", "a")]
)
@pytest.mark.parametrize("is_group", [False, True])
def test_what_comes_after_the_question_stays(
    traffic: Traffic, shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], is_group: bool
) -> None:
    """Also where others have taken some of those that it has counted."""
    traffic.post("a.dead", *letters(*range(10)))
    traffic.post("a", Message("there before"))
    which = ("--group", shell.value("dead")[0]["id"]) if is_group else ()

    def meanwhile() -> None:
        traffic.reject("a.dead", 2)
        traffic.post("a.dead", *letters(*range(10, 15)))

    def asked(*_: Any, **__: Any) -> bool:
        meanwhile()
        return True

    monkeypatch.setattr(changes, "may", asked)
    code, out = shell.run(*words, *which)
    assert (code, out) == (1, "8 messages done\n2 left: not in the queue any more\n")
    copied = words[0] == "copy"
    assert depths(shell)["a.dead"] == (13 if copied else 5)
    assert depths(shell)["a"] == (1 if words[0] == "purge" else 9)


@pytest.mark.parametrize("words", [("purge", "a.dead"), ("copy", "a.dead", "a")])
def test_what_is_done_goes_in_portions_and_can_be_interrupted(
    traffic: Traffic, shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(changes, "CHUNK", 3)
    monkeypatch.setattr(changes, "COPIED", 3)
    traffic.post("a.dead", *letters(*range(10)))
    shell.lines("create", "a")
    really, asked = ManagementClient.ask, [0]

    def interrupted(self: ManagementClient, operation: str, **more: Any) -> Any:
        asked[0] += operation == words[0]
        if asked[0] == 3:
            raise KeyboardInterrupt
        return really(self, operation, **more)

    with monkeypatch.context() as patch:
        patch.setattr(ManagementClient, "ask", interrupted)
        assert shell.run(*words, "--yes") == (130, "")
    assert "6 messages done" in shell.error
    copied = words[0] == "copy"
    assert depths(shell) == {"a": 6 if copied else 0, "a.dead": 10 if copied else 4}
    assert shell.lines(*words, "--yes") == [f"{10 if copied else 4} messages done"]


def test_a_question_says_what_is_done(traffic: Traffic, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many of a group `--most` leaves, also of those to copy."""
    traffic.post("a.dead", *letters(*range(10)))
    shell.lines("create", "a")
    which = ("--group", shell.value("dead")[0]["id"], "--most", "7")
    assert "would purge 7 messages of a.dead" in shell.lines("purge", "a.dead", *which, "--dry-run")[0]
    assert shell.lines("copy", "a.dead", "a", *which) == ["7 messages done"]
    monkeypatch.setattr("sys.stdin", Typed("yes\n"))
    assert shell.lines("purge", "a.dead", *which) == ["7 messages done"]
    assert (
        "purge 7 messages of a.dead for good: nothing says why (what is held, or comes later, stays)? " in shell.error
    )
    assert depths(shell) == {"a": 7, "a.dead": 3}


def test_what_is_held_is_no_part_of_it(traffic: Traffic, shell: Shell) -> None:
    traffic.post("a", *letters(*range(4)))
    shell.lines("create", "b")
    traffic.prepare(XID, "a", "b")
    assert "would purge 3 messages of a for good (1 more is held, and stay)" in shell.lines("purge", "a", "--dry-run")
    assert shell.lines("purge", "a", "--most", "1", "--yes") == ["1 message done"]
    held = "1 left: held by a consumer or a transaction\n"
    assert shell.run("purge", "a", "--yes") == (1, f"2 messages done\n{held}")
    assert shell.run("purge", "a", "--yes") == (1, f"0 messages done\n{held}")
    traffic.post("a", Message("later"))
    assert shell.run("purge", "a", "--yes") == (1, f"1 message done\n{held}")


@pytest.mark.slow
def test_ids_that_are_not_in_the_queue_are_told(traffic: Traffic, shell: Shell) -> None:
    shell.lines("create", "b")
    for words in (("purge", "a", "--yes"), ("move", "a", "b"), ("copy", "a", "b"), ("retry", "a", "--to", "b")):
        with case(words):
            traffic.post("a", Message("one"))
            known = shell.value("messages", "a")[0]["id"]
            assert shell.run(*words, "--id", "ffff") == (1, "0 messages done\n1 left: not in the queue\n")
            assert shell.run(*words, "--id", "ffff", "--dry-run")[0] == 1
            code, out = shell.run(*words, "--id", "ffff", "--id", known, "--id", "fffe", "--json")
            assert (code, json.loads(out)) == (1, {"done": 1, "left": {"not in the queue": 2}})
    code, out = shell.run("retry", "b")
    assert code == 1
    assert "--to" in out, "says which option helps"


def test_queues_are_made_paused_and_emptied_into_others(broker: EmbeddedBroker, traffic: Traffic, shell: Shell) -> None:
    traffic.post("orders", *letters(*range(3)))
    assert shell.lines("create", "later") == ["done: create later"]
    told = ["configure", "later", "--max-depth", "5", "--when-full", "dead-letter"]
    assert shell.lines(*told) == ["done: configure later: max_depth = 5, when_full = dead-letter"]
    assert shell.run("configure", "later")[0] == 5, "nothing is to change"
    assert shell.lines("pause", "orders", "--dry-run") == ["would pause orders"]
    assert shell.lines("pause", "orders") == ["done: pause orders"]
    assert any("paused: anonymous" in line for line in shell.lines("queues"))
    assert shell.lines("copy", "orders", "later", "--most", "1") == ["1 message done"]
    assert shell.lines("move", "orders", "later") == ["3 messages done"]
    assert shell.lines("resume", "orders") == ["done: resume orders"]
    broker.stop()
    broker.start()
    assert depths(shell) == {"orders": 0, "later": 4}
    assert [one["what"] for one in shell.value("audit")][:2] == ["resume-queue", "move"]


def test_a_connection_is_closed_and_a_branch_dropped(traffic: Traffic, shell: Shell) -> None:
    traffic.post("orders", Message("a"))
    traffic.work(XID, taken_from="orders")
    assert shell.lines("drop", str(XID), "--yes") == [f"done: drop branch {XID}, which is not prepared"]
    (branch,) = shell.value("branches")
    assert branch["state"].startswith("S4")
    for one in shell.value("connections"):
        if "operator" not in one["container"]:
            shell.value("close", one["number"], "--yes")
    assert all("operator" in one["container"] for one in shell.value("connections"))
    assert shell.run("close", "ffff", "--yes") == (5, "")
    with pytest.raises(XaError):
        traffic.rm.end(XID, 1, TMSUCCESS)


@pytest.mark.slow
def test_users_and_permissions_are_changed_while_the_broker_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    set_password(file, "operator", "secret", iterations=4096)
    permissions = Permissions({"operator": EVERYTHING})
    broker = EmbeddedBroker(tmp_path, users=file, permissions=permissions, plain_without_tls=True)
    try:
        shell = Shell(f"amqp://operator:secret@{broker.address}/?timeout=20", capsys)
        monkeypatch.setattr("sys.stdin", io.StringIO("word\n"))
        assert shell.lines("set-password", "alice") == ["done: set the password of alice"]
        alice = Shell(f"amqp://alice:word@{broker.address}/?timeout=20", capsys)

        for who, why in (("operator:@", "is empty"), ("operator:%07@", "a character that is not allowed")):
            nobody = Shell(f"amqp://{who}{broker.address}/?timeout=20", capsys)
            assert nobody.run("queues")[0] == 5
            assert why in nobody.error
            assert nobody.error.startswith("xabridge broker queues: ")

        assert alice.run("queues") == (5, "")
        assert "alice may not view this broker" in alice.error
        assert shell.lines("permit", "alice", "--view", "--consume", "orders*")[0].startswith("done: let alice")
        assert alice.lines("queues") == ["no queues"]
        assert alice.run("create", "q") == (5, "")
        assert shell.lines("users") == [
            "NAME      PASSWORD PERMISSIONS",
            "alice     store    store",
            "    consume orders*; view",
            "operator  file     file",
            "    consume *; produce *; create *; coordinate all; view;",
            "    manage; read_payload",
        ]
        broker.stop()
        broker.start()
        assert alice.lines("queues") == ["no queues"]
        assert shell.run("remove-user", "alice") == (5, "")
        assert shell.lines("remove-user", "alice", "--yes")[0].startswith("done: remove the user alice")
        assert alice.run("queues")[0] == 5
        assert shell.run("forbid", "operator", "--yes") == (5, "")
        entries = [(one["who"], one["what"], one["outcome"]) for one in shell.value("audit")]
        assert [what for who, what, outcome in entries if (who, outcome) == ("operator", "done")] == [
            "sign-in", "remove-user", "sign-in", "set-permissions", "set-user",
        ]  # fmt: skip
        assert ("alice", "create-queue", "refused") in entries
        assert ("operator", "remove-permissions", "refused") in entries
        lines = shell.lines("audit", "--who", "alice", "--what", "create-*")
        assert lines[0].endswith("  alice")
        assert lines[1:3] == ["    create-queue: queue q", "    refused: alice may not manage this broker"]
        assert lines[3].startswith("    from 127.0.0.1:")
        assert shell.lines("audit", "--who", "bob") == ["no entries"]
        assert shell.error == ""
        for command, operation in ("set-password", "set-user"), ("permit", "set-permissions"), ("set-*", ""):
            recorded = {one["what"] for one in shell.value("audit", "--what", command)}
            assert recorded == ({operation} if operation else {"set-user", "set-permissions"}), command
            assert shell.error == ""
        assert shell.lines("audit", "--what", "create_queue") == ["no entries"]
        assert "nothing that is recorded is called create_queue: it is audit, " in shell.error
    finally:
        broker.stop()


def test_a_password_is_rotated_while_everything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with the old password prepares a branch, and one with the new password commits it."""
    users = tmp_path / "users"
    for user in ("operator", "shop"):
        set_password(users, user, "first", iterations=4096)
    broker = EmbeddedBroker(tmp_path, users=users, permissions=Permissions({"*": EVERYTHING}))
    opened: list[Traffic] = []
    shop = f"amqp://shop:{{}}@{broker.address}/?timeout=20"
    try:
        shell = Shell(f"amqp://operator:first@{broker.address}/?timeout=20", capsys)
        opened = [Traffic(shop.format("first"))]
        opened[0].post("orders", Message("a"))
        opened[0].prepare(XID, "orders", "invoices")

        for time_kept in ("0s", "31d"):
            for how in ((), ("--dry-run",)):
                assert shell.run("set-password", "shop", "--keep-old", time_kept, *how) == (2, "")
        would = shell.lines("set-password", "shop", "--keep-old", "30d", "--dry-run")
        assert would == ["would set the password of shop; the old one is valid for another 30 d"]
        monkeypatch.setattr("sys.stdin", io.StringIO("second\n"))
        assert shell.lines("set-password", "shop", "--keep-old", "24h") == [
            "done: set the password of shop; the old one is valid for another 24 h"
        ]
        assert shell.run("set-password", "shop", "--keep-old", "24h", "--dry-run") == (5, "")
        assert "shop has two passwords already" in shell.error
        assert any("old password is valid for another 2" in line for line in shell.lines("users"))
        opened += [Traffic(shop.format(word)) for word in ("first", "second")]
        entries = shell.value("audit", "--who", "shop", "--what", "sign-in")
        assert [one["about"] for one in entries] == [{}, {"password": "old"}]
        assert any("by an old password" in line for line in shell.lines("connections", "--user", "shop"))
        opened[2].rm.commit(XID, 1)
        assert shell.value("branches") == []

        assert shell.run("set-password", "shop", "--revoke-now") == (5, "")
        assert shell.lines("set-password", "shop", "--revoke-now", "--yes")[0].startswith("done: end the old password")
        assert [one["old-password-connections"] for one in shell.value("users") if one["name"] == "shop"] == [0]
        with pytest.raises(XaError):
            Traffic(shop.format("first"))
        opened[2].post("orders", Message("b"))
        assert shell.run("set-password", "shop", "--revoke-now", "--yes") == (5, "")
        assert "shop has one password" in shell.error
        assert shell.run("set-password", "bob", "--keep-old", "1h", "--dry-run") == (5, "")
        assert shell.run("set-password", "bob", "--keep-old", "1h") == (5, "")
        assert "there is no user 'bob'" in shell.error
    finally:
        for one in opened:
            one.close()
        broker.stop()


def test_dead_letters_that_a_consumer_sent_are_found(traffic: Traffic, shell: Shell) -> None:
    """Why, their annotations say, which the broker has read as they came."""
    traffic.post("orders", Message("alive"))
    letter = Message("order", annotations={"x-opt-dead-reason": "ValueError: no\x1b[2J", "x-opt-dead-queue": "orders"})
    traffic.post("orders.dead", letter)

    (found,) = shell.value("dead", "--all")
    assert (found["queue"], found["from"], found["why"]) == ("orders.dead", "orders", None)
    shown: list[tuple[str, ...]] = [(), ("--all",)]
    for words in shown:
        said = [line.strip() for line in shell.lines("dead", *words)]
        assert said[said.index(r"ValueError: no\x1b[2J") + 1] == "from orders"
    assert r"x-opt-dead-reason: ValueError: no\x1b[2J" in shell.lines("read", "orders.dead", found["id"])
    assert shell.value("read", "orders.dead", found["id"])["annotations"]["x-opt-dead-queue"] == "orders"
    assert len(shell.value("dead", "orders*", "--all")) == 2
    assert shell.lines("retry", "orders.dead", "--yes")[-1] == "1 message done"
    assert [one["state"] for one in shell.value("messages", "orders")] == ["available"] * 2
    mistyped: list[tuple[str, ...]] = [
        ("dead", "orders.daed"),
        ("dead", "orders.daed", "--all"),
        ("queues", "orders.daed"),
    ]
    for words in mistyped:
        assert shell.run(*words) == (1, "")
        assert "there is no queue 'orders.daed'; did you mean orders.dead" in shell.error


def test_a_group_of_dead_letters_is_retried_and_purged(traffic: Traffic, shell: Shell) -> None:
    notes = {"x-opt-dead-place": "/srv/shop/orders.py:17 in handle", "x-opt-dead-queue": "orders"}
    for error, count in (("ValueError: no customer {}", 3), ("KeyError: 'tax {}'", 2)):
        for number in range(count):
            letter = Message(number, annotations={"x-opt-dead-reason": error.format(number), **notes})
            traffic.post("orders.dead", letter)
    traffic.post("orders", Message("alive"))
    lines = [line.strip() for line in shell.lines("dead")]
    assert max(map(len, lines)) <= tables.WIDTH
    at = lines.index("ValueError: no customer 0")
    assert lines[at + 1 : at + 3] == ["at /srv/shop/orders.py:17 in handle", "from orders"]
    assert lines[at - 2].split()[1] == "3", "the largest group comes first"
    assert "and 2 letters in 1 group more: --most N shows them" in shell.lines("dead", "--most", "1")

    first, second = [group["id"] for group in shell.value("dead")]
    (said,) = shell.lines("retry", "orders.dead", "--group", first, "--dry-run")
    assert said.startswith("would retry 3 messages of orders.dead to where they came from: ValueError: no customer 0,")
    assert shell.run("purge", "orders.dead", "--group", second) == (5, ""), "it asks"
    assert shell.lines("purge", "orders.dead", "--group", second, "--yes") == ["2 messages done"]
    assert shell.value("retry", "orders.dead", "--group", first, "--most", "2") == {"done": 2, "left": {}}
    assert depths(shell) == {"orders": 3, "orders.dead": 1}
    assert shell.run("retry", "orders.dead", "--group", second) == (5, "")
    assert "`dead orders.dead` shows the groups" in shell.error
    assert any(f"group {first}" in line for line in shell.lines("audit"))


def test_tables() -> None:
    """A sign of Chinese takes two columns of a terminal, and a combining one none; amounts take five characters; what
    is watched keeps its head on a short terminal."""
    for number, shown in (
        (0, "0"), (0.25, "0.2"), (7, "7"), (99_999, "99999"), (123_456, "123k"), (4_500_000, "4.5M"), (3e12, "3T"),
    ):  # fmt: skip
        assert text.amount(number) == shown
        assert len(text.octets(number)) <= 5

    numbers = [str(number) for number in range(20)]
    assert views.fitted(numbers, 21) == numbers
    assert views.fitted(numbers, 20) == [*numbers[:18], "and 2 lines more"]
    row = ("available", "2", "1", "0", "1")
    lines = tables.table(
        ("QUEUE", "A", "B", "C", "D", "E"), [("队列", *row), ("e\u0301", *row), ("plain", *row)], [()] * 3
    )
    assert [line.index("available") for line in lines[1:]] == [5, 8, 7]
    letters = [{"id": "1000000001d", "state": "available", "octets": 104, "since": 0, "queue": f"{'队' * 12}.dead",
                "from": "orders", "why": "rejected", "error": None, "place": None}]  # fmt: skip
    assert tables.dead(letters, 0)[2] == f"    in {'队' * 12}.dead"


def test_every_command_that_changes_something_chooses_its_entries(shell: Shell) -> None:
    """By its name as it is typed, whatever the broker calls the operation."""
    of_queues = "move copy retry purge create delete configure pause resume"
    for command in f"{of_queues} close drop set-password remove-user permit forbid".split():
        assert shell.lines("audit", "--what", command) == ["no entries"]
        assert shell.error == "", command
