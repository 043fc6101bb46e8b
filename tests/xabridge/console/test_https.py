"""The console with HTTPS, its own or that of a proxy in front of it: over real sockets, as a browser comes."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack, closing
from http.client import HTTPSConnection
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from rm_amqp import Message
from tests.xabridge.console.scene import PASSWORD, Traffic, console
from xabridge.console import server as server_module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPResponse

    from tests.rm_amqp.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow
WAIT_S = 30
NAME = "console.example"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate of NAME, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    files = str(folder / "certificate.pem"), str(folder / "key.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
    make += ["-addext", f"subjectAltName=DNS:{NAME}", "-out", files[0], "-keyout", files[1]]
    subprocess.run(make, check=True, capture_output=True)
    return files


class Proxy:
    """Speaks TLS with browsers, and passes on what they say, Host and all."""

    def __init__(self, port: int, certificate: tuple[str, str]) -> None:
        self._to = port
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        self._listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self._pairs: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in (self._listener, *self._pairs):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                browser, _ = self._listener.accept()
            except OSError:
                return
            console = socket.create_connection(("127.0.0.1", self._to))
            self._pairs += (browser, console)
            for one, other in ((browser, console), (console, browser)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        try:
            while octets := one.recv(65536):
                other.sendall(octets)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            one.close()
            other.close()


class Browser:
    """What a browser does with cookies, hosts and origins."""

    def __init__(self, port: int, certificate: str) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=certificate)
        self.cookies: dict[str, str] = {}
        self.origin = f"https://{NAME}"
        self._open = ExitStack()

    def close(self) -> None:
        self._open.close()

    def ask(self, method: str, path: str, fields: dict[str, str] | None = None) -> HTTPResponse:
        connection = self._open.enter_context(
            closing(HTTPSConnection("127.0.0.1", self._port, timeout=WAIT_S, context=self._context))
        )
        connection.sock = self._context.wrap_socket(
            socket.create_connection(("127.0.0.1", self._port), timeout=WAIT_S), server_hostname=NAME
        )
        headers = {"Host": NAME, "Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        if method == "POST":
            headers |= {"Origin": self.origin, "Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method, path, urlencode(fields or {}), headers)
        response = self._open.enter_context(closing(connection.getresponse()))
        for cookie in response.headers.get_all("set-cookie") or ():
            assert "Secure" in cookie
            assert "SameSite=strict" in cookie
            name, _, value = cookie.partition(";")[0].partition("=")
            assert name.startswith("__Host-xabridge")
            self.cookies[name] = value.strip('"')
        return response

    def sign_in(self) -> int:
        form = self.ask("GET", "/login").read().decode()
        before = re.search(r'name="before" value="([^"]+)"', form)
        assert before is not None
        told = {"user": "operator", "password": PASSWORD, "before": before[1], "next": ""}
        return self.ask("POST", "/login", told).status


@pytest.fixture(params=["its own", "a proxy"])
def browser(request: pytest.FixtureRequest, filled: EmbeddedBroker, certificate: tuple[str, str]) -> Iterator[Browser]:
    """A browser that comes by HTTPS."""
    own = request.param == "its own"
    https = {"certificate": certificate[0], "key": certificate[1]} if own else {"https": True}
    with ExitStack() as stack:
        broker = ("main", f"amqp://{filled.address}/?connect_timeout=5&timeout=20")
        server = stack.enter_context(console([broker], hosts=(NAME,), **https))
        port = int(server.address.rstrip("/").rpartition(":")[2])
        assert server.address.startswith("https:" if own else "http:")
        if not own:
            port = stack.enter_context(closing(Proxy(port, certificate))).port
        yield stack.enter_context(closing(Browser(port, certificate[0])))


def test_pages_changes_and_what_moves(browser: Browser, filled: EmbeddedBroker) -> None:
    assert browser.sign_in() == 303
    page = browser.ask("GET", "/b/main/change/purge?queue=invoices").read().decode()
    told = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.partition("<main")[2]))
    for origin in (f"http://{NAME}", "https://evil.example", "null"):
        browser.origin = origin
        assert browser.ask("POST", "/b/main/change/purge", told).status == 403
    browser.origin = f"https://{NAME}"
    response = browser.ask("POST", "/b/main/change/purge", told)
    assert response.status == 303
    assert response.headers["location"].startswith("/jobs/"), "without a scheme that could be the wrong one"
    assert response.headers["strict-transport-security"]
    stream = browser.ask("GET", "/live/queues?q=parcels")
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["x-accel-buffering"] == "no"
    first = stream.readline()
    assert first.startswith(b"data: "), "at once"
    traffic = Traffic(filled)
    traffic.post("parcels", *(Message(number) for number in range(40)))
    traffic.close()
    began = time.monotonic()
    while b">41<" not in stream.readline():
        assert time.monotonic() - began < WAIT_S
    stream.close()


def test_handshakes_that_never_end_are_given_up(
    filled: EmbeddedBroker, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "REQUEST_S", 1.0)
    broker = ("main", f"amqp://{filled.address}/")
    with (
        console([broker], hosts=(NAME,), certificate=certificate[0], key=certificate[1]) as server,
        ExitStack() as stack,
    ):
        port = int(server.address.rstrip("/").rpartition(":")[2])
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)) for _ in range(200)
        ]
        assert stack.enter_context(closing(Browser(port, certificate[0]))).sign_in() == 303, "beside them"
        for stranger in strangers:
            assert stranger.recv(1) == b""
