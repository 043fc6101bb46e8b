"""Who gets in, for how long, and what every request has to pass; also over HTTPS of the console's own."""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dtx.broker.access.permissions import EVERYTHING, Permissions
from rm_amqp import Message
from tests.cases import each
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.shop import Clock
from tests.xabridge.console.conftest import BROWSER, HOST, Visitor, fields_of, place_of
from tests.xabridge.console.scene import PASSWORD, console, url
from tests.xabridge.traffic import post
from tm import ConfigurationError
from xabridge.console import server as server_module
from xabridge.console.browser import browser_of
from xabridge.console.console import WAITING
from xabridge.console.event_stream import OVER
from xabridge.console.pages import LIVE, PAGES
from xabridge.console.security import MAX_BODY
from xabridge.console.settings import ConsoleSettings, console_settings
from xabridge.testing.contract.client import case

IDLE_S = 1800.0
SESSION_S = 43_200.0


@pytest.fixture
def visitor(settled: EmbeddedBroker, visit: Callable[..., Visitor]) -> Visitor:
    """Somebody who visits a console for the broker of all these tests."""
    return visit(place_of(settled))


def concrete(path: str) -> str:
    return path.replace("{broker}", "main").replace("{operation}", "purge").replace("{number}", "1")


def test_nothing_is_shown_to_who_has_not_signed_in(visitor: Visitor) -> None:
    for path, methods, page in PAGES:
        if methods == ["GET"]:
            answer = visitor.client.get(concrete(path), follow_redirects=False)
            assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/login")
            if page in LIVE:
                assert visitor.client.get(f"/live{concrete(path)}").text == OVER
        else:
            assert "nothing was done" in visitor.post(concrete(path), token="x", status=401)  # noqa: S106


def test_every_change_needs_the_token_of_the_session(onlooker: Visitor) -> None:
    for path, methods, _ in PAGES:
        if methods == ["POST"]:
            for token in ("", "x" * 43):
                assert "Nothing was done" in onlooker.post(
                    concrete(path), {"queue": "orders", "user": "x"}, token=token, status=403
                )
    assert "55" in onlooker.get("/queues?q=orders")


def test_a_page_of_somebody_else_can_send_nothing(visitor: Visitor) -> None:
    visitor.sign_in()
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        answer = visitor.client.post("/logout", data={"token": visitor.token()}, headers=headers)
        assert answer.status_code == 403
    assert visitor.client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert visitor.client.request("DELETE", "/").status_code == 403
    visitor.get("/")
    large = visitor.client.post("/b/main/queue/new", data={"token": "x", "name": "x" * MAX_BODY})
    assert large.status_code == 413
    assert visitor.client.post("/b/main/queue/new", content=b"\xff\xfe").status_code == 400


def test_a_browser_is_told_what_it_may_do(visitor: Visitor) -> None:
    visitor.sign_in()
    for path in ("/", "/login", "/no/such/page", "/static/console.js"):
        headers = visitor.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("public, max-age=86400" if "static" in path else "no-store")
    page = visitor.get("/")
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", page)


def test_the_cookie_is_kept_from_scripts_and_other_sites(
    settled: EmbeddedBroker, visit: Callable[..., Visitor]
) -> None:
    """Behind a proxy with HTTPS it is for HTTPS only, and pages of the same host without it are other sites."""
    for https in (False, True):
        visitor = visit(place_of(settled), https=https)
        origin = HOST.replace("http:", "https:") if https else HOST
        visitor.client.base_url = origin
        visitor.client.headers["origin"] = origin
        visitor.client.follow_redirects = False
        behind_a_proxy(visitor)
        visitor.sign_in(status=303)
        assert visitor.latest is not None

        assert visitor.latest.headers["location"] == "/", "without a scheme that could be the wrong one"
        name = "__Host-xabridge=" if https else "xabridge="
        (cookie,) = [one for one in visitor.latest.headers.get_list("set-cookie") if one.startswith(name)]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ("Secure" in cookie) is https
        assert ("strict-transport-security" in visitor.latest.headers) is https
        token = visitor.token()
        for wrong in ("https://127.0.0.1:8162", *([HOST] if https else [])):
            assert visitor.client.post("/logout", data={"token": token}, headers={"origin": wrong}).status_code == 403
        visitor.post("/logout", status=303)


def behind_a_proxy(visitor: Visitor) -> None:
    """The proxy passes on what browsers say, Host and all, without encryption."""
    transport: Any = visitor.client._transport
    console = transport.app

    async def passed_on(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await console({**scope, "scheme": "http"}, receive, send)

    transport.app = passed_on


def test_a_wrong_password_is_refused(visitor: Visitor) -> None:
    for user, password in (("operator", "wrong"), ("nobody", "x"), ("operator", ""), ("", "")):
        with case(user, password):
            assert "do not take this name" in visitor.sign_in(user, password, status=401)
            assert visitor.client.get("/", follow_redirects=False).status_code == 303


def test_many_sign_ins_of_one_address_wait_and_hold_up_nobody_else(visitor: Visitor) -> None:
    visitor.console.waiting[BROWSER] = WAITING
    assert "Too many people sign in" in visitor.sign_in(status=429)
    visitor.console.waiting.clear()
    visitor.console.waiting["elsewhere"] = WAITING
    visitor.sign_in()
    assert visitor.console.waiting == {"elsewhere": WAITING}


def test_signing_in_leads_nowhere_else(visitor: Visitor) -> None:
    for back in ("//evil.example/", "https://evil.example", "/\\evil.example", "javascript:x", "/live/"):
        with case(back):
            assert 'name="next" value=""' in visitor.get(f"/login?next={back}")
    fields = {"user": "operator", "password": "x", "before": "0" * 64, "next": ""}
    assert visitor.client.post("/login", data=fields).status_code == 403, "the form was not given"


@pytest.mark.slow
def test_a_session_ends_when_it_is_idle_and_when_its_time_is_over(visitor: Visitor, clock: Clock) -> None:
    visitor.sign_in()
    clock.now += IDLE_S - 1
    visitor.get("/audit")
    clock.now += IDLE_S + 1
    assert "Sign in" in visitor.get("/audit")
    visitor.sign_in()
    for _ in range(int(SESSION_S / 1700)):
        clock.now += 1700
        assert "Sign out" in visitor.get("/audit")
    clock.now += 1700
    assert "Sign in" in visitor.get("/audit")

    for leaves in (True, False):  # or signs in again
        visitor.client.cookies.clear()
        visitor.sign_in()
        key = visitor.client.cookies["xabridge"]
        visitor.post("/logout") if leaves else visitor.sign_in("viewer")
        visitor.client.cookies.clear()
        visitor.client.cookies.set("xabridge", key)
        assert "Sign in" in visitor.get("/")

    visitor.client.cookies.clear()
    visitor.sign_in()
    clock.now += IDLE_S + 1
    key = visitor.client.cookies["xabridge"]
    answer = visitor.client.get("/live/", headers={"cookie": f"xabridge={key}"})
    assert answer.text == OVER, "a page that updates itself keeps no session alive"
    assert "Sign in" in visitor.get("/")


def test_one_user_has_so_many_sessions_and_the_idlest_ends(
    visitor: Visitor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xabridge.console.sessions.PER_USER", 3)
    keys = []
    for _ in range(4):
        visitor.client.cookies.clear()
        clock.now += 1
        visitor.sign_in()
        keys.append(visitor.client.cookies["xabridge"])
    shown = []
    for key in (keys[0], keys[1], keys[-1]):
        visitor.client.cookies.clear()
        visitor.client.cookies.set("xabridge", key)
        shown.append("Sign out" in visitor.get("/audit"))
    assert shown == [False, True, True]


def test_what_somebody_does_is_in_the_audit_lines(visitor: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "xabridge.console.audit"):
        visitor.sign_in()
        visitor.post("/b/main/queue/new", {"name": "made"})
        visitor.post("/logout")
    lines = [record.message for record in caplog.records if record.name == "xabridge.console.audit"]
    assert [one for one in ("sign-in", "create-queue", "sign-out") if any(one in line for line in lines)] == [
        "sign-in", "create-queue", "sign-out",
    ]  # fmt: skip
    assert all('"who": "operator", ' in line and f'"browser": "{BROWSER}"' in line for line in lines)


def test_a_sign_in_that_is_refused_is_in_the_audit_lines_without_what_was_typed(
    visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "xabridge.console.audit"):
        visitor.sign_in("my password", "operator", status=401)
    (line,) = (record.message for record in caplog.records if record.name == "xabridge.console.audit")
    refused = {"who": "an unknown user", "what": "sign-in", "browser": BROWSER, "outcome": "refused"}
    assert json.loads(line) == refused


@each(
    ("client", "passed", "browser"),
    [
        ("192.0.2.7", [], "192.0.2.7"),
        ("192.0.2.7", ["198.51.100.1"], "192.0.2.7"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("::ffff:10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["198.51.100.1, 192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["198.51.100.1", "192.0.2.7, 2001:db8:0::2"], "192.0.2.7"),
        ("10.0.0.1", ["10.0.0.1"], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.7, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["<script>"], "10.0.0.1"),
        ("/run/socket", ["192.0.2.7"], ""),
    ],
)
def test_the_browser_s_address_is_believed_of_the_proxies_alone(client: str, passed: list[str], browser: str) -> None:
    """What stands in front of it in the header, the browser may have said itself."""
    settings = ConsoleSettings(proxies=("10.0.0.1", "2001:DB8::2"))
    headers = [(b"x-forwarded-for", one.encode()) for one in passed]
    assert browser_of({"client": (client, 50_000), "headers": headers}, settings.trusted) == browser


def test_a_proxy_that_is_no_address_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "xabridge.toml"
    path.write_text('[console]\nproxies = ["10.0.0.0/8"]\n')
    with pytest.raises(ConfigurationError, match=r"'10\.0\.0\.0/8' is no IP address"):
        console_settings(path, {})


def test_a_broker_without_users_takes_no_name(tmp_path: Path, visit: Callable[..., Visitor]) -> None:
    broker = EmbeddedBroker(tmp_path, anonymous=True, permissions=Permissions({"anonymous": EVERYTHING}))
    try:
        visitor = visit(f"amqp://{broker.address}/?timeout=20")
        visitor.sign_in("", "")
        assert "No queues yet" in visitor.get("/")
    finally:
        broker.stop()


# -- HTTPS of its own, over real sockets
WAIT_S = 30
NAME = "console.example"


def make_certificate(folder: Path) -> tuple[str, str]:
    """A certificate and its key, in place of those that are there."""
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
    make += ["-addext", f"subjectAltName=DNS:{NAME}", "-out", certificate, "-keyout", key]
    subprocess.run(make, check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def browser(
    filled: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx2.Client]:
    """Somebody who comes by HTTPS, with the name that is in the certificate."""
    monkeypatch.setattr(server_module, "REQUEST_S", 2.0)
    folder = tmp_path_factory.mktemp("certificate")
    certificate, key = make_certificate(folder)
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


@pytest.mark.slow
def test_a_new_certificate_is_shown_to_who_connects_from_then_on(filled: EmbeddedBroker, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    first = ssl.create_default_context(cafile=certificate)
    broker = ("main", f"amqp://{filled.address}/?connect_timeout=5&timeout=20")

    def get(client: httpx2.Client) -> int:
        return client.get("/login", headers={"Host": NAME}, extensions={"sni_hostname": NAME}).status_code

    with console([broker], hosts=(NAME,), certificate=certificate, key=key) as server:
        with httpx2.Client(base_url=server.address, verify=first, timeout=WAIT_S) as opened:
            assert get(opened) == 200
            make_certificate(tmp_path)
            assert get(opened) == 200, "over the connection that it has"
        with (
            httpx2.Client(base_url=server.address, verify=first, timeout=WAIT_S) as late,
            pytest.raises(httpx2.ConnectError),
        ):
            get(late)
        second = ssl.create_default_context(cafile=certificate)
        with httpx2.Client(base_url=server.address, verify=second, timeout=WAIT_S) as new:
            assert get(new) == 200


@pytest.mark.slow
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


@pytest.mark.slow
def test_handshakes_that_never_end_are_given_up(browser: httpx2.Client) -> None:
    place = (browser.base_url.host, browser.base_url.port)
    with ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(place, timeout=WAIT_S)) for _ in range(200)]
        sign_in(browser)  # beside them
        for stranger in strangers:
            assert stranger.recv(1) == b""
