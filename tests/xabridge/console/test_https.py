"""The console with HTTPS of its own, over real sockets. Behind a proxy it has `https = true`: test_signing_in.py asks
it as a proxy would."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx2
import pytest

from rm_amqp import Message
from tests.xabridge.console.conftest import fields_of
from tests.xabridge.console.scene import PASSWORD, console, url
from tests.xabridge.traffic import post
from xabridge.console import server as server_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rm_amqp.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow
WAIT_S = 30
NAME = "console.example"


@pytest.fixture
def browser(
    filled: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx2.Client]:
    """Somebody who comes by HTTPS, with the name that is in the certificate."""
    monkeypatch.setattr(server_module, "REQUEST_S", 2.0)
    folder = tmp_path_factory.mktemp("certificate")
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
    make += ["-addext", f"subjectAltName=DNS:{NAME}", "-out", certificate, "-keyout", key]
    subprocess.run(make, check=True, capture_output=True)
    broker = ("main", f"amqp://{filled.address}/?connect_timeout=5&timeout=20")
    with (
        console([broker], hosts=(NAME,), certificate=certificate, key=key) as server,
        httpx2.Client(
            base_url=server.address,
            headers={"Host": NAME, "Origin": f"https://{NAME}"},
            verify=ssl.create_default_context(cafile=certificate),
            timeout=WAIT_S,
        ) as client,
    ):
        client.event_hooks["request"].append(lambda request: request.extensions.update(sni_hostname=NAME))
        yield client


def sign_in(browser: httpx2.Client) -> None:
    """With a cookie for HTTPS only."""
    before = re.search(r'name="before" value="([^"]+)"', browser.get("/login").text)
    assert before is not None
    told = {"user": "operator", "password": PASSWORD, "before": before[1], "next": ""}
    response = browser.post("/login", data=told)
    assert response.status_code == 303
    for cookie in response.headers.get_list("set-cookie"):
        assert cookie.startswith("__Host-xabridge")
        assert "Secure" in cookie


def test_pages_changes_and_what_moves(browser: httpx2.Client, filled: EmbeddedBroker) -> None:
    sign_in(browser)
    told = fields_of(browser.get("/b/main/change/purge?queue=invoices").text)
    for origin in (f"http://{NAME}", "https://evil.example", "null"):
        assert browser.post("/b/main/change/purge", data=told, headers={"Origin": origin}).status_code == 403
    response = browser.post("/b/main/change/purge", data=told)
    assert response.status_code == 303
    assert response.headers["location"].startswith("/jobs/"), "without a scheme that could be the wrong one"
    assert response.headers["strict-transport-security"]
    with browser.stream("GET", "/live/queues?q=parcels") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["x-accel-buffering"] == "no"
        lines = stream.iter_lines()
        assert next(lines).startswith("data: "), "at once"
        post(url(filled), "parcels", *(Message(number) for number in range(40)))
        began = time.monotonic()
        while ">41<" not in next(lines):
            assert time.monotonic() - began < WAIT_S


def test_handshakes_that_never_end_are_given_up(browser: httpx2.Client) -> None:
    place = (browser.base_url.host, browser.base_url.port)
    with ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(place, timeout=WAIT_S)) for _ in range(200)]
        sign_in(browser)  # beside them
        for stranger in strangers:
            assert stranger.recv(1) == b""
