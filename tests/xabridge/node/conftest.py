"""These fixtures give a test a node that runs, with transactions in doubt, and somebody who asks over HTTP."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.xabridge.cli.field import NODE, Field
from tm import TransactionManager
from xabridge.testing.ports import free_port

TOKEN: Final = "a token that looks"  # noqa: S105 — of these tests
ACT_TOKEN: Final = "a token that acts"  # noqa: S105 — of these tests
WAIT_S: Final = 30
NAME: Final = "orders-1·3fa91c·1"


class Asker:
    """Somebody with the tokens of a node."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, path: str, told: Any = None, *, token: str, **headers: str) -> tuple[int, Any]:
        """Asks, or posts `told`; the status, and what was said."""
        body = told if isinstance(told, bytes) or told is None else json.dumps(told).encode()
        fields = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, fields)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as response:  # noqa: S310 — of this machine
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
                with contextlib.suppress(ValueError):
                    return error.code, json.loads(text)
                return error.code, text

    def in_doubt(self) -> dict[str, Any]:
        """What is in doubt."""
        status, told = self.send("/node/in-doubt", token=TOKEN)
        assert status == 200, told
        assert isinstance(told, dict)
        return told

    def preview(self, doing: str, name: str = "", *, on: list[str] | None = None, gone: list[str] | None = None) -> Any:
        """What it would do."""
        wanted = {"doing": doing, "name": name, "on": on or [], "gone": gone or []}
        return self.send("/node/preview", wanted, token=ACT_TOKEN)

    def act(self, ticket: str, *, heuristic: bool = False) -> tuple[int, Any]:
        """Does it."""
        return self.send("/node/act", {"ticket": ticket, "heuristic": heuristic, "who": "anna"}, token=ACT_TOKEN)

    def do(self, doing: str, name: str = "", *, heuristic: bool = False, **more: list[str]) -> Any:
        """Looks at it and does it."""
        status, told = self.preview(doing, name, **more)
        assert status == 200, told
        status, came = self.act(told["ticket"], heuristic=heuristic)
        assert status == 200, came
        return came


def undecided(field: Field) -> bytes:
    """Transaction NAME: prepared on both, and nothing is decided."""
    gtrid = field.gtrid(1)
    for store in ("broker", "shop"):
        field.prepare(store, gtrid, "key")
    return gtrid


@pytest.fixture
def field(node_field: Field) -> Field:
    """The node."""
    return node_field


@pytest.fixture
def running(field: Field) -> Iterator[Callable[..., tuple[TransactionManager, Asker]]]:
    """Starts the node's manager, which recovers only when it is asked to."""
    with contextlib.ExitStack() as stack:

        def started(*stores: str, **settings: Any) -> tuple[TransactionManager, Asker]:
            port = free_port()
            told = {"http_token": TOKEN, "http_act_token": ACT_TOKEN, "background": False, **settings}
            manager = stack.enter_context(
                TransactionManager(
                    NODE,
                    field.open_log(),
                    {name: field.url(name) for name in stores or ("broker", "shop")},
                    http=f"127.0.0.1:{port}",
                    **told,
                )
            )
            return manager, Asker(port)

        yield started
