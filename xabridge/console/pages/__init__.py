"""The pages, by their addresses. Each is a coroutine that asks the brokers and answers with a view; what needs no
session is in `OPEN`, what keeps itself up to date in `LIVE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from xabridge.console.pages import (
    changes,
    connections,
    dead_letters,
    login,
    messages,
    nodes,
    overview,
    pipelines,
    queues,
    transactions,
    users,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from xabridge.console.console import Console
    from xabridge.console.sessions import Session
    from xabridge.console.view import PageView

    Page: TypeAlias = "Callable[[Console, Request, Session], Awaitable[PageView | Response]]"
    OpenPage: TypeAlias = "Callable[[Console, Request], Awaitable[Response]]"

_GET: Final = ["GET"]
_POST: Final = ["POST"]

OPEN: Final[list[tuple[str, list[str], OpenPage]]] = [
    ("/login", _GET, login.asked),
    ("/login", _POST, login.signed_in),
    ("/logout", _POST, login.signed_out),
]

PAGES: Final[list[tuple[str, list[str], Page]]] = [
    ("/", _GET, overview.overview),
    ("/queues", _GET, queues.queues),
    ("/dead", _GET, dead_letters.dead_letters),
    ("/transactions", _GET, transactions.transactions),
    ("/transactions/one", _GET, transactions.transaction),
    ("/transactions/act", _GET, transactions.choice),
    ("/transactions/act-all", _GET, transactions.choice_of_many),
    ("/transactions/act", _POST, transactions.act),
    ("/transactions/recover", _GET, transactions.expected),
    ("/transactions/recover", _POST, transactions.recover),
    ("/nodes", _GET, nodes.nodes),
    ("/pipelines", _GET, pipelines.pipelines),
    ("/connections", _GET, connections.connections),
    ("/users", _GET, users.users),
    ("/audit", _GET, changes.audit),
    ("/b/{broker}/queue", _GET, queues.queue),
    ("/b/{broker}/queue/new", _POST, queues.create),
    ("/b/{broker}/message", _GET, messages.message),
    ("/b/{broker}/message", _POST, messages.read),
    ("/b/{broker}/connection", _GET, connections.connection),
    ("/b/{broker}/user", _GET, users.user),
    ("/b/{broker}/user/password", _POST, users.set_password),
    ("/b/{broker}/user/permissions", _POST, users.set_permissions),
    ("/b/{broker}/change/{operation}", _GET, changes.preview),
    ("/b/{broker}/change/{operation}", _POST, changes.change),
    ("/jobs/{number}", _GET, changes.job),
    ("/jobs/{number}/stop", _POST, changes.stop),
]

LIVE: Final = {
    overview.overview,
    queues.queues,
    queues.queue,
    transactions.transactions,
    transactions.transaction,
    nodes.nodes,
    pipelines.pipelines,
    connections.connections,
    changes.job,
}
