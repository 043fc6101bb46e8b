"""These fixtures give a test a console with its brokers, asked without a browser, and a browser for the others."""

from __future__ import annotations

import html
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from dtx.broker.settings import Settings
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.shop import Clock
from tests.xabridge.cli.field import Field
from tests.xabridge.console.scene import PASSWORD, broker_with_users, doubts, fill
from tm import configuration_from
from xabridge.console.app import application
from xabridge.console.console import Console
from xabridge.console.settings import ConsoleSettings, WatchedBroker
from xabridge.testing.ports import free_port

HOST = "http://127.0.0.1:8161"
BROWSER = "192.0.2.7"
"""Where the visitors come from."""
WAIT_S = 60.0


class Visitor:
    """Somebody who uses the console by its forms."""

    def __init__(self, client: TestClient, console: Console) -> None:
        self.client = client
        self.console = console
        self.latest: Response | None = None

    def get(self, path: str, status: int = 200) -> str:
        """A page."""
        self.latest = self.client.get(path)
        assert self.latest.status_code == status, self.latest.text[-1500:]
        return self.latest.text

    def sign_in(self, user: str = "operator", password: str = PASSWORD, status: int = 200) -> str:
        """Signs in by the form."""
        before = _hidden(self.client.get("/login").text, "before")
        self.latest = self.client.post(
            "/login", data={"user": user, "password": password, "before": before, "next": ""}
        )
        assert self.latest.status_code == status, self.latest.text[-1500:]
        return self.latest.text

    def post(
        self, path: str, fields: dict[str, Any] | None = None, *, status: int = 200, token: str | None = None
    ) -> str:
        """Sends a form with the session's token."""
        token = self.token() if token is None else token
        self.latest = self.client.post(path, data={"token": token, **(fields or {})})
        assert self.latest.status_code == status, self.latest.text[-1500:]
        return self.latest.text

    def token(self) -> str:
        """The session's token, as a page has it."""
        return _hidden(self.client.get("/audit").text, "token")

    def change(self, path: str, fields: dict[str, Any] | None = None, *, status: int = 200) -> str:
        """Looks at a preview and confirms it."""
        told = fields_of(self.get(path))
        return self.post(path.partition("?")[0], {**told, **(fields or {})}, status=status)

    def until(self, path: str, wanted: str, meanwhile: Callable[[], None] = lambda: None) -> str:
        """The page, as soon as it has what this pattern tells, with its tags or without. `meanwhile` is called before
        each look."""
        deadline = time.monotonic() + WAIT_S
        meanwhile()
        while not re.search(wanted, (page := self.get(path)) + text_of(page)):
            assert time.monotonic() < deadline, page[-1500:]
            time.sleep(0.05)
            meanwhile()
        return page

    def outcome(self) -> str:
        """What has come of the change that was asked for last, as soon as it is over."""
        assert self.latest is not None
        return self.until(self.latest.url.path, r"<h1>(?!Under way)")


def fields_of(page: str) -> dict[str, str]:
    """The fields of a form that are not shown."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.partition("<main")[2])
    return {name: html.unescape(value) for name, value in found}


def text_of(page: str) -> str:
    """What a page says, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.partition("<main")[2])).split())


def choice(visitor: Visitor, act: str, name: str, on: str = "") -> tuple[str, dict[str, str]]:
    """What the preview of an act says, and the fields of its form."""
    page = visitor.get(f"/transactions/act?act={act}&name={quote(name)}&on={on}")
    return text_of(page), fields_of(page)


def _hidden(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert found is not None, page[-1500:]
    return found[1]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker with users, and with nothing in it."""
    made = broker_with_users(tmp_path / "broker")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of such a broker with queues, dead letters and a branch in doubt; it is stopped."""
    folder = tmp_path_factory.mktemp("filled")
    made = broker_with_users(folder)
    fill(made)
    made.stop()
    return folder / "broker.db"


@pytest.fixture
def filled(filled_store: Path, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker with all that."""
    shutil.copy(filled_store, tmp_path)
    made = broker_with_users(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def settled(filled_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The same for all tests of a module that change nothing at it. Its dead letters are not new."""
    folder = tmp_path_factory.mktemp("settled")
    shutil.copy(filled_store, folder)
    made = broker_with_users(folder, settings=Settings(dead_letters_s=0.0))
    yield made
    made.stop()


def break_down(broker: EmbeddedBroker) -> None:
    """Stops it as a crash does: a console's connection that nobody uses would not answer a goodbye."""
    broker.cut("")
    broker.stop()


@pytest.fixture
def clock() -> Clock:
    """The console's clock."""
    return Clock()


@pytest.fixture
def away() -> str:
    """Where no broker is."""
    return f"amqp://127.0.0.1:{free_port()}/?connect_timeout=2&timeout=5"


@pytest.fixture
def field(node_field: Field) -> Field:
    """A node with two transactions in doubt."""
    node_field.configure(urls=[(name, node_field.url(name, scheme="shown-test")) for name in ("broker", "shop")])
    doubts(node_field)
    return node_field


@pytest.fixture
def visit(clock: Clock) -> Iterator[Callable[..., Visitor]]:
    """Starts a console for these brokers, and gives somebody who visits it."""
    with ExitStack() as stack:

        def started(*urls: str, field: Field | None = None, **settings: Any) -> Visitor:
            names = ("main", "second", "third")
            watched = tuple(WatchedBroker(name, url) for name, url in zip(names, urls, strict=False))
            configuration = None if field is None else configuration_from(field.config)
            console = Console(ConsoleSettings(brokers=watched, **settings), configuration, clock)
            client = stack.enter_context(TestClient(application(console), HOST, client=(BROWSER, 50_000)))
            client.headers["origin"] = HOST
            return Visitor(client, console)

        yield started


@pytest.fixture
def operator(request: pytest.FixtureRequest, visit: Callable[..., Visitor]) -> Visitor:
    """An operator at the broker of the test, which is filled or has nothing in it."""
    name = "filled" if "filled" in request.fixturenames else "broker"
    visitor = visit(place_of(request.getfixturevalue(name)))
    visitor.sign_in()
    return visitor


@pytest.fixture
def onlooker(settled: EmbeddedBroker, visit: Callable[..., Visitor]) -> Visitor:
    """An operator who only looks."""
    visitor = visit(place_of(settled))
    visitor.sign_in()
    return visitor


@pytest.fixture
def of_a_node(settled: EmbeddedBroker, field: Field, visit: Callable[..., Visitor]) -> Visitor:
    """An operator whose console has a node with transactions in doubt."""
    visitor = visit(place_of(settled), field=field)
    visitor.sign_in()
    return visitor


def place_of(broker: EmbeddedBroker) -> str:
    """The broker, for a console."""
    return f"amqp://{broker.address}/?connect_timeout=5&timeout=20"
