"""The table [console], the flags, and what becomes of the users in URLs."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rm_amqp.settings import parse
from tm.resources import ConfigurationError
from xabridge.console.history import FINE_S, SLOT_S, SLOTS, History, known
from xabridge.console.server import serving
from xabridge.console.settings import ConsoleSettings, console_settings
from xabridge.testing.ports import free_port


def settings(folder: Path, text: str, **flags: Any) -> Any:
    file = folder / "xabridge.toml"
    file.write_text(text, encoding="utf-8")
    return console_settings(file, {"SECRET": "p@ss"}, **flags)


def test_which_brokers_it_watches(tmp_path: Path) -> None:
    made = console_settings(None, {})
    assert [(one.name, one.url) for one in made.brokers] == [("broker", "amqp://127.0.0.1:5672")]
    flags = {"listen": "127.0.0.1:2", "brokers": {"x": "amqp://h"}}
    assert settings(tmp_path, '[console]\nlisten = "8161"\n').address == ("127.0.0.1", 8161)
    made = settings(tmp_path, '[console]\nlisten = "127.0.0.1:1"\n', **flags)
    assert (made.listen, made.brokers[0].name) == ("127.0.0.1:2", "x"), "flags go before the file"


def test_without_a_table_the_brokers_are_those_of_the_resources_without_their_users(tmp_path: Path) -> None:
    made = settings(
        tmp_path,
        'node = "n"\n[resources]\nb = "amqp://app:pw@host:1/?channels=2"\ndb = "postgresql://x@y/z"\n'
        'c = { url = "amqps://app@other/?password_env=SECRET", mode = "decider" }\n',
    )
    assert [one.name for one in made.brokers] == ["b", "c"]
    assert all(one.watch is None and "app" not in one.url and "pw" not in one.url for one in made.brokers)


def test_the_user_of_a_url_watches_and_is_nobody_elses(tmp_path: Path) -> None:
    made = settings(tmp_path, '[console.brokers]\na = "amqp://eye@host/?password_env=SECRET&cert=c.pem&key=k.pem"\n')
    (broker,) = made.brokers
    assert parse(broker.watch, {"SECRET": "p@ss"}).password == "p@ss"  # noqa: S105 — of this test
    for user in ("", "ada", "a@b:c/d?e"):
        told = parse(broker.as_user(user, "pass word/@:%"))
        assert (told.user, told.password) == (user, "pass word/@:%" if user else "")
        assert bool(told.certificate) is bool(user)  # nobody comes in with the console's certificate


def test_nodes_have_their_tokens_from_the_environment(tmp_path: Path) -> None:
    made = settings(tmp_path, '[console.nodes]\na = { url = "http://h:9464", token_env = "SECRET" }\n')
    (node,) = made.nodes
    assert (node.name, node.url, node.token) == ("a", "http://h:9464", "p@ss")
    assert "p@ss" not in repr(made)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[console]\nlistn = 1", r"console\.listn: unknown key; known are .* \(did you mean listen\?\)"),
        ('[console]\nlisten = "nowhere"', "expected host:port"),
        ('[console]\nlisten = "0.0.0.0:8161"', "passwords would be sent in the clear"),
        ("[console]\nidle_s = 0", "seconds above 0 and below 10,000,000, not 0"),
        ("[console]\nsessions = 1.5", "a whole number, 1 to 9,999,999, not 1.5"),
        ('[console]\nhttps = "yes"', "true or false"),
        ('[console]\nhosts = "one"', "a list of names"),
        ('[console]\ncertificate = "a"', "given together"),
        ("[console]\nbrokers = {}", "at least one broker"),
        ('[console.brokers]\n"a/b" = "amqp://h"', "letters, digits"),
        ("[console.brokers]\na = 1", r"console\.brokers\.a: expected a URL"),
        ('[console.brokers]\na = "http://h"', "not a scheme"),
        ('[console.brokers]\na = "amqp://u:${NONE}@h"', "NONE is not set"),
        ("[console]\nnodes = 1", "console.nodes: expected a table"),
        ('[console.nodes]\n"a/b" = {}', "letters, digits"),
        ('[console.nodes]\na = "http://h"', r"console\.nodes\.a: expected a table, not 'http://h'"),
        ('[console.nodes]\na = { url = "ftp://h", token_env = "SECRET" }', "a URL of http or https"),
        ('[console.nodes]\na = { url = "http://u:p@h", token_env = "SECRET" }', "a URL of http or https"),
        ('[console.nodes]\na = { url = "http://h:x", token_env = "SECRET" }', "a URL of http or https"),
        ('[console.nodes]\na = { url = "http://h", token_env = "NONE" }', "NONE is not set"),
        ('[console.nodes]\na = { url = "http://h", token_env = "SECRET", act_token_env = "NONE" }', "NONE is not set"),
        (
            '[console.nodes]\na = { url = "http://h", act_token_env = "SECRET" }',
            r"console\.nodes\.a\.token_env: missing; expected text",
        ),
        (
            '[console.nodes]\na = { url = "http://h", token_env = "SECRET", acting = true }',
            r"a\.acting: unknown key; known are act_token_env",
        ),
        ("console = 1", "console: expected a table"),
        ("[console", "xabridge.toml"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        settings(tmp_path, text)


def test_an_hour_is_kept_and_no_more() -> None:
    now = 0.0
    history = History(lambda: now)
    for slot in range(SLOTS + 10):
        now = slot * SLOT_S
        if slot % 2:
            continue
        for rate in (slot, slot + 2):  # the mean of a slot
            history.note([{"name": "q", "lasting": True, "depth": slot, "rate-in": rate, "rate-out": 0}])
    line = history.of("q")
    assert line is not None
    assert known(line.depth) == [float(slot) for slot in range(10, SLOTS + 10, 2)]
    assert known(line.rate_in)[0] == 11.0
    history.note([])
    assert history.of("q") is None
    now += 2 * SLOTS * SLOT_S
    total = history.of()
    assert total is not None
    assert known(total.depth) == []

    now = 100_000.0
    history = History(lambda: now)
    assert (history.of(), history.span) == (None, "last minute")
    spans = []
    for _ in range(70):
        history.note([{"name": "q", "lasting": True, "depth": now, "rate-in": 0, "rate-out": 0}])
        line = history.of("q")
        assert line is not None
        spans.append((line.span, len(line.depth)))
        assert line.depth[-1] == pytest.approx(now, abs=1)
        now += FINE_S
    assert list(dict.fromkeys(spans)) == [
        ("last minute", 12), ("last 2 minutes", 24), ("last 3 minutes", 36), ("last 4 minutes", 48),
        ("last 5 minutes", 60), ("last hour", SLOTS),
    ], "the first minutes are not a line at the edge of an hour"  # fmt: skip
    fine = history._rings["q"].fine.line(int(now // FINE_S) - 1, 12, "")
    assert len(known(fine.depth)) == 12


@pytest.mark.slow
@pytest.mark.parametrize("command", ["console", "broker"])
def test_the_commands_serve_until_they_are_stopped(tmp_path: Path, command: str) -> None:
    port, other = free_port(), free_port()
    flags = {
        "console": ["console", "--listen", f"127.0.0.1:{port}"],
        "broker": ["broker", "--listen", f"127.0.0.1:{other}", "--console", str(port)],
    }[command]
    with subprocess.Popen(
        [sys.executable, "-m", "xabridge.cli", *flags], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = ""
        while f"http://127.0.0.1:{port}/" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/login") as page:
            assert b"Sign in" in page.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_who_asks_for_nothing_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xabridge.console.server.REQUEST_S", 0.3)
    monkeypatch.setattr("xabridge.console.security.BODY_S", 0.3)
    head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    form = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\nuser"
    with serving(ConsoleSettings(listen=f"127.0.0.1:{free_port()}")) as server, ExitStack() as stack:
        place = server.console.settings.address
        begun_by = {}
        for begun in (b"", head, head + form):
            silent = stack.enter_context(socket.create_connection(place, timeout=30))
            silent.sendall(begun)
            begun_by[silent] = begun

        for silent, begun in begun_by.items():
            said = b""
            while piece := silent.recv(4096):  # until the console closes it
                said += piece
            assert said.startswith(b"HTTP/1.1 408 " if begun.endswith(b"user") else b"")
        with urllib.request.urlopen(f"http://127.0.0.1:{place[1]}/login") as page:
            assert b"Sign in" in page.read()
