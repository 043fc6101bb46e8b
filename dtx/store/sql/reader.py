"""Reader, the thread that reads payloads for a SQL store, and PayloadCache, which has those that were stored last."""

from __future__ import annotations

import binascii
import logging
import threading
from collections import OrderedDict
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy.exc import SQLAlchemyError

from dtx.store.contract import StoreError, StoreStopped
from xa.sql.errors import explained, is_of_one_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from dtx.store.sql.statements import Statements

    Fetched: TypeAlias = Callable[[Mapping[int, bytes], StoreError | None], None]
    ChunkFetched: TypeAlias = Callable[[bytes | None, StoreError | None], None]

LOG: Final = logging.getLogger("xabridge.broker")
ROWS: Final = 64


class Reader:
    """The thread. What it read is delivered to the event loop, in the order of the requests."""

    def __init__(
        self, connection: Connection, statements: Statements, deliver: Callable[[Callable[[], None]], object]
    ) -> None:
        self._connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        self._statements = statements
        self._deliver = deliver
        self._in_one_row = connection.dialect.name == "sqlite"
        self._requests: SimpleQueue[Callable[[], Callable[[], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-reader", daemon=True)
        self._thread.start()

    def fetch(self, messages: Sequence[int], done: Fetched) -> None:
        """Queues a request for payloads."""

        def read() -> Callable[[], None]:
            try:
                found = self._payloads(messages)
            except SQLAlchemyError as error:
                failure = StoreStopped(f"payloads can't be read: {explained(error)}")
                return lambda: done({}, failure)
            return lambda: done(found, None)

        self._requests.put(read)

    def fetch_chunk(self, message: int, number: int, done: ChunkFetched) -> None:
        """Queues a request for one piece of a large message."""
        which = {"message": message, "number": number}

        def read() -> Callable[[], None]:
            try:
                piece: bytes | None = self._connection.execute(
                    self._statements.select_chunk, which
                ).scalar_one_or_none()
            except SQLAlchemyError as error:
                if is_of_one_place(error):
                    LOG.warning("piece %d of message %d can't be read: %s", number, message, explained(error))
                    return lambda: done(None, None)
                failure = StoreStopped(f"a piece of a payload can't be read: {explained(error)}")
                return lambda: done(None, failure)
            return lambda: done(piece, None)

        self._requests.put(read)

    def close(self) -> None:
        """Answers what was asked, and ends the thread."""
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (read := self._requests.get()) is not None:
            self._deliver(read())

    def _payloads(self, messages: Sequence[int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for start in range(0, len(messages), ROWS):
            found.update(self._readable(tuple(messages[start : start + ROWS])))
        return found

    def _readable(self, messages: tuple[int, ...]) -> list[tuple[int, bytes]]:
        """The payloads of these messages. Where the store is damaged, what can be read of them."""
        text = self._statements.select_payloads.text(len(messages))
        try:
            return self._pairs(self._connection.exec_driver_sql(text, messages).all())
        except SQLAlchemyError as error:
            if not is_of_one_place(error):
                raise
            if len(messages) == 1:
                LOG.warning("the payload of message %d can't be read: %s", messages[0], explained(error))
                return []
        return [pair for message in messages for pair in self._readable((message,))]

    def _pairs(self, rows: Sequence[Any]) -> list[tuple[int, bytes]]:
        if not self._in_one_row:
            return [(message, bytes(payload)) for message, payload in rows]
        numbers, payloads = rows[0]
        if numbers is None:
            return []
        octets = map(binascii.unhexlify, payloads.split(","))
        return list(zip(map(int, str(numbers).split(",")), octets, strict=True))


class PayloadCache:
    """The payloads that were stored last, up to a number of octets. Used on the event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._payloads: OrderedDict[int, bytes] = OrderedDict()  # a dict is slow at losing its first key
        self._octets = 0

    def add(self, payloads: Sequence[tuple[int, bytes]]) -> None:
        """Keeps these, and drops the oldest ones for them."""
        for message, payload in payloads:
            self._payloads[message] = payload
            self._octets += len(payload)
        while self._octets > self._limit:
            self._octets -= len(self._payloads.popitem(last=False)[1])

    def drop(self, message: int) -> None:
        """Forgets one."""
        payload = self._payloads.pop(message, None)
        if payload is not None:
            self._octets -= len(payload)

    def get(self, message: int) -> bytes | None:
        """One, if it is here."""
        return self._payloads.get(message)
