"""These tests run `xabridge outbox` as an operator does, over SQLite and the embedded broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.rm_amqp.embedded import EmbeddedBroker
from xabridge import Message
from xabridge.cli.main import main
from xabridge.outbox import Inbox, Outbox, OutboxStore


class Operator:
    """Types commands in a folder with a configuration."""

    def __init__(self, store: OutboxStore, capsys: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._capsys = capsys

    def types(self, *words: str) -> tuple[int, str]:
        """The exit code, and what it said."""
        code = main(["outbox", *words])
        said = self._capsys.readouterr()
        return code, said.out + said.err

    def reads(self, *words: str) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.types(*words, "--json")[1])

    def puts(self, *bodies: object, key: str | None = None) -> None:
        with self.store.engine.begin() as connection:
            Outbox().put_all(connection, "orders", [Message(body) for body in bodies], key=key)

    def refuses(self) -> None:
        """All that waits is set aside."""
        with self.store.engine.begin() as connection:
            connection.execute(
                update(self.store.tables.outbox).values(state="refused", attempts=3, reason="\x1b[2J no")
            )


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "xabridge.toml").write_text(
        f'node = "n"\n[resources]\nshop = {{ url = "{url}", mode = "decider" }}\n'
        '[outbox]\ndatabase = "shop"\nbatch = 10\n'
    )
    store = OutboxStore.at(url)
    store.open()
    yield Operator(store, capsys)
    store.close()


def test_status_list_and_clean(operator: Operator, tmp_path: Path) -> None:
    assert operator.types("status") == (0, "0 messages waiting; 0 set aside\n")
    operator.puts({"n": 1}, "two", key="k")
    assert operator.reads("status")["waiting"] == 2
    listed = operator.reads("list")["messages"]
    assert [(row["destination"], row["key"], row["state"]) for row in listed] == [("orders", "k", "waiting")] * 2
    assert operator.types("list", "--limit", "1")[1].endswith("1 message listed\n")
    shown = operator.reads("show", str(listed[0]["id"]))
    assert shown["body"] == {"n": 1}
    assert "body         'two'" in operator.types("show", str(listed[1]["id"]))[1]
    assert operator.types("show", "99")[0] == 5
    fresh = f"sqlite:///{tmp_path}/other.db"
    code, said = operator.types("create", "--dry-run", "--database", fresh)
    assert (code, said.count("CREATE TABLE")) == (0, 3)
    assert operator.types("create", "--database", fresh)[0] == 0
    assert operator.types("status", "--database", fresh)[0] == 0

    with operator.store.engine.begin() as connection:
        Inbox("c", clock=lambda: 0.0).is_new(connection, "old")
        Inbox("c").is_new(connection, "young")
    assert operator.types("clean", "--older-than", "1d") == (0, "1 row of the inbox deleted\n")


def test_what_was_refused(operator: Operator) -> None:
    operator.puts(1, 2, 3)
    operator.refuses()
    code, said = operator.types("status")
    assert (code, said) == (1, "0 messages waiting; 3 set aside\n")
    code, said = operator.types("list", "--refused")
    assert "refused 3 ×: \\x1b[2J no" in said  # it moves no cursor
    ids = [str(row["id"]) for row in operator.reads("list", "--refused")["messages"]]

    assert operator.types("retry")[0] == 2
    assert operator.types("retry", "--refused", "--dry-run") == (0, "3 messages would be changed\n")
    assert operator.types("retry", ids[0]) == (0, "1 message will be sent again\n")
    assert operator.types("delete", ids[1])[0] == 5
    assert operator.types("delete", ids[1], "--yes") == (0, "1 message deleted\n")
    assert operator.types("delete", ids[1], "--yes")[0] == 5
    assert operator.types("retry", ids[1], "--dry-run")[0] == 5
    told = "1 message will be sent again\n1 of the IDs is not there: sent, or deleted\n"
    assert operator.types("retry", ids[0], ids[1]) == (1, told)
    assert operator.types("retry", "--refused") == (0, "1 message will be sent again\n")
    assert operator.reads("status")["waiting"] == 2


def test_the_relay_once(operator: Operator, tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    operator.puts(*range(25))
    assert operator.types("relay", "--once")[0] == 2  # there is no broker in the file
    url = f"amqp://{broker.address}"
    assert operator.types("relay", "--once", "--broker", url) == (0, "25 messages sent, 0 refused, 0 set aside\n")
    broker.stop()
    assert operator.types("relay", "--once", "--broker", url)[0] == 1


def test_a_configuration_that_is_wrong(operator: Operator, tmp_path: Path) -> None:
    for table, told in (
        ("database = 7", "outbox.database: expected text"),
        ('database = "none"', "outbox.database: expected a URL, or one of [resources]: shop, not 'none'"),
        ('databse = "shop"', "outbox.databse: unknown key; known are"),
        ('databse = "shop"', "(did you mean database?)"),
        ("batch = 0", "outbox.batch: expected a whole number, 1 to 1,000, not 0"),
        ("batch = 1.5", "outbox.batch: expected a whole number, 1 to 1,000, not 1.5"),
        ("poll_s = true", "outbox.poll_s: expected seconds above 0 and below 3,600, not True"),
        ("timeout_s = 3600", "outbox.timeout_s: expected seconds above 0 and below 3,600, not 3600"),
        ("max_attempts = 0", "outbox.max_attempts: expected a whole number, 1 or more, not 0"),
        ('database = "${NO_SUCH}://x"', "the environment variable NO_SUCH is not set"),
    ):
        (tmp_path / "xabridge.toml").write_text(
            f'node = "n"\n[resources]\nshop = "postgresql://x/y"\n[outbox]\n{table}\n', encoding="utf-8"
        )
        code, said = operator.types("status")
        assert code == 2
        assert told in said

    (tmp_path / "xabridge.toml").unlink()
    code, said = operator.types("status")
    assert code == 2
    assert "no database: pass --database" in said
    code, said = operator.types("status", "--database", "postgresql://u:s3cret@127.0.0.1:1/x")
    assert code == 1
    assert "s3cret" not in said


def test_a_number_that_no_row_can_have_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    commands = (["show"], ["retry"], ["delete", "--yes"], ["list", "--limit"])
    wrong = ("-1", "9223372036854775808", "9" * 40, "1e9", "²", "1_0")
    for words, number in (*((words, "0") for words in commands), *((["show"], number) for number in wrong)):
        with pytest.raises(SystemExit, match="2"):
            main(["outbox", *words, number])
        assert "expected a whole number from 1 to" in (said := capsys.readouterr().err) or "arguments" in said
