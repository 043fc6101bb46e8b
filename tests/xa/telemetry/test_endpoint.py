"""These tests check what strangers can do to the endpoint for probes: wrong requests, slow ones, and very many."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.event_loop import in_loop
from xa.telemetry import endpoint as module
from xa.telemetry import exposition
from xa.telemetry.endpoint import (
    REQUEST_OCTETS,
    AddressTaken,
    Answer,
    EndpointThread,
    PostActions,
    PrivatePages,
    text_answer,
)
from xa.telemetry.exposition import Exposition, MetricsPage

WAIT_S = 30


class Pages:
    """Pages that count how often they were made."""

    def __init__(self) -> None:
        self.made = 0

    async def plain(self) -> Answer:
        self.made += 1
        return text_answer(200, "fine")

    async def broken(self) -> Answer:
        raise LookupError("a defect")


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def server(pages: Pages) -> Iterator[EndpointThread]:
    with EndpointThread({"/plain": pages.plain, "/broken": pages.broken}, "127.0.0.1", 0) as server:
        yield server


def connected(server: EndpointThread) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    octets = b""
    try:
        while more := connection.recv(65536):
            octets += more
    except ConnectionResetError:  # it closed before it had read all
        pass
    return octets


def asked(server: EndpointThread, request: bytes) -> bytes:
    with connected(server) as connection:
        connection.sendall(request)
        return everything(connection)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /plain?a=b HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /plain HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01 \x00 \xff\r\n\r\n", b"400 Bad Request"),
        (b"GET /" + b"x" * (2 * REQUEST_OCTETS), b"431 Request Header Fields Too Large"),
    ],
)
def test_what_it_answers(server: EndpointThread, request_: bytes, status: bytes) -> None:
    assert asked(server, request_).startswith(b"HTTP/1.1 " + status + b"\r\n")


def test_head_has_no_body(server: EndpointThread) -> None:
    head, _, body = asked(server, b"HEAD /plain HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Content-Length: 5" in head
    assert body == b""


def test_a_page_that_fails_is_said_so_and_the_others_go_on(
    server: EndpointThread, caplog: pytest.LogCaptureFixture
) -> None:
    assert b"500 Internal" in asked(server, b"GET /broken HTTP/1.1\r\n\r\n")
    assert b"200 OK" in asked(server, b"GET /plain HTTP/1.1\r\n\r\n")
    assert "LookupError: a defect" in caplog.text


def test_who_says_nothing_keeps_nobody_out(server: EndpointThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """The silent one that came first goes, and the request of the one that came last is answered."""
    monkeypatch.setattr(module, "OPEN", 4)
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(server)) for _ in range(4)]
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/plain", timeout=WAIT_S) as response:
            assert response.status == 200
        assert everything(silent[0]) == b""


def test_who_says_too_little_is_dropped(server: EndpointThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_S", 0.05)
    with connected(server) as connection:
        connection.sendall(b"GET /pl")
        assert everything(connection).startswith(b"HTTP/1.1 408 ")


def test_a_flood_costs_little(server: EndpointThread, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask, it is one connection in PACE_S."""
    monkeypatch.setattr(module, "PACE_S", 0.1)
    began = time.monotonic()
    asking = [threading.Thread(target=asked, args=(server, b"GET /plain HTTP/1.1\r\n\r\n")) for _ in range(5)]
    for one in asking:
        one.start()
    for one in asking:
        one.join(WAIT_S)
    assert pages.made <= 5
    assert time.monotonic() - began >= 4 * module.PACE_S


@in_loop
async def test_a_page_is_made_once_for_all_who_wait() -> None:
    go, made = asyncio.Event(), 0

    async def page() -> Answer:
        nonlocal made
        made += 1
        await go.wait()
        return text_answer(200, "fine")

    endpoint = module.Endpoint({"/plain": page})
    port = await endpoint.start("127.0.0.1", 0)
    asking = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    for _, writer in asking:
        writer.write(b"GET /plain HTTP/1.1\r\n\r\n")
    while len(endpoint._answering) < len(asking):  # noqa: ASYNC110 — it tells nobody
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)  # the last one asks for the page
    go.set()
    for reader, writer in asking:
        assert (await reader.read()).endswith(b"fine\n")
        writer.close()
    await endpoint.close()
    assert made == 1


def test_an_address_that_is_taken_is_named(server: EndpointThread) -> None:
    with pytest.raises(AddressTaken, match=f"127.0.0.1:{server.port}: Address already in use"):
        EndpointThread({}, "127.0.0.1", server.port)


def test_a_text_of_metrics_is_shown_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a flood of scrapes does not make one after the other."""

    class Counted(Exposition):
        made = 0

        def text(self) -> bytes:
            self.made += 1
            return b"text"

    async def scenario(page: MetricsPage, times: int) -> None:
        for _ in range(times):
            assert (await page()).body == b"text"

    counted = Counted()
    asyncio.run(scenario(MetricsPage(counted), 10))
    assert counted.made == 1
    monkeypatch.setattr(exposition, "KEPT_S", 0.0)
    monkeypatch.setattr(exposition, "KEPT_TIMES", 0)
    asyncio.run(scenario(MetricsPage(counted), 3))
    assert counted.made == 4
    counted.close()


TOKEN = "a token of these tests"  # noqa: S105 — as it says


class Posted:
    """Takes what is posted."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def take(self, body: bytes) -> Answer:
        self.bodies.append(body)
        if body == b"broken":
            raise LookupError("a defect")
        return text_answer(200, "taken")


def head(length: int, token: str = TOKEN) -> bytes:
    return (
        f"POST /act HTTP/1.1\r\nContent-Length: {length}\r\ncontent-type: application/json; charset=utf-8\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    ).encode()


def test_what_is_posted_comes_in_pieces_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    posted = Posted()
    private = PrivatePages("x" * 16, {}, PostActions(TOKEN, {"/act": posted.take}))
    with EndpointThread({}, "127.0.0.1", 0, private) as server:
        for pieces, status in (
            ([head(4), b"bo", b"dy"], b"200"),
            ([head(4) + b"body"], b"200"),
            ([head(6), b"broken"], b"500"),
            ([head(4, "wrong"), b"body"], b"401"),
            ([head(4), b"bo"], b"408"),
        ):
            if status == b"408":
                monkeypatch.setattr(module, "READ_S", 0.05)
            with connected(server) as connection:
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.02)
                assert everything(connection).split(b" ")[1] == status, pieces

        monkeypatch.undo()
        with connected(server) as connection:
            connection.sendall(head(4) + b"bo")
            connection.shutdown(socket.SHUT_WR)
            assert everything(connection) == b"", "it is not taken for the whole"
    assert posted.bodies == [b"body", b"body", b"broken"]


def test_slow_bodies_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    posted = Posted()
    private = PrivatePages("x" * 16, {}, PostActions(TOKEN, {"/act": posted.take}))
    with EndpointThread({}, "127.0.0.1", 0, private) as server, ExitStack() as stack:
        monkeypatch.setattr(module, "OPEN", 4)
        for _ in range(8):
            stack.enter_context(connected(server)).sendall(head(4) + b"bo")
        with connected(server) as connection:
            connection.sendall(head(4) + b"body")
            assert everything(connection).split(b" ")[1] == b"200"
