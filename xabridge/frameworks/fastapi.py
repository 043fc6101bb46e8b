"""FastAPI: an App that lives as long as the service, a dependency that is the request's transaction, errors as answers.

    api = FastAPI()
    connect(api, app)
    Transaction = Annotated[Shop, transaction(app)]

    @api.post("/orders")
    def place(order: Order, tx: Transaction) -> Order:
        tx.send("orders", order)
        return order

The transaction commits when the function has returned, and before the answer is sent: an answer that says yes is true.
An exception, an HTTPException too, rolls it back. An answer with a status that the function returns is no exception.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import Depends
from fastapi.responses import JSONResponse

from xabridge.frameworks.error_responses import HANDLED, response_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI, Request
    from fastapi.responses import Response

    from tm import Transaction
    from xabridge.app import App


def transaction(app: App, timeout_s: float | None = None) -> Any:
    """The dependency that is the request's transaction, for `Annotated[Tx, transaction(app)]`."""

    async def begun() -> AsyncIterator[Transaction]:
        async with app.begin(timeout_s) as tx:
            yield tx

    return Depends(begun, scope="function")  # which ends before the answer is sent


def connect(api: FastAPI, app: App) -> None:
    """Has the App run as long as the service does, and its errors answered. If a test has connected the App already, it
    is left as it is."""
    lifespan = api.router.lifespan_context

    @asynccontextmanager
    async def both(service: FastAPI) -> AsyncIterator[Any]:
        async with lifespan(service) as state:
            if app.is_connected:
                yield state
            else:
                async with app:
                    yield state

    api.router.lifespan_context = both
    for kind in HANDLED:
        api.add_exception_handler(kind, answer)


async def answer(_request: Request, error: Exception) -> Response:
    """The answer for an error of a transaction."""
    status, detail, headers = response_for(error)
    return JSONResponse({"detail": detail}, status, headers)
