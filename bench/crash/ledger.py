"""`Ledger` places orders, and compares them with queue, rows and invoices.

It reads the brokers with a client of another project and the databases with plain psycopg and PyMySQL. Beyond these it
trusts only the outcomes that the workers got: the data of a committed transaction must be there, and that of a rolled
back one must not.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import pymysql
from proton import ConnectionException, Message, Timeout
from proton.reactor import Copy
from proton.utils import BlockingConnection, SyncRequestResponse
from sqlalchemy import make_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")

ASK_S: Final = 10.0
GONE_S: Final = 2.0
CREDIT: Final = 500
TRIES: Final = 5
TABLE: Final = """
    CREATE TABLE handled (number integer NOT NULL, attempt text NOT NULL, queue text NOT NULL);
    CREATE INDEX ON handled (queue)
"""
"""No key: an order that is written twice has to be seen, not to be refused."""

COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"


@dataclass(slots=True)
class Audit:
    """What was found. `lost`: orders that are neither in the queue nor a row nor an invoice, and transactions that
    were reported committed and left no row; `duplicated`: more rows or invoices than one of an order, or one that
    is in the queue as well, and transactions that were reported rolled back and left a row; `split`: rows without
    their invoice, and invoices without their row; `left_in_doubt`: prepared branches at brokers and database."""

    lost: int = 0
    duplicated: int = 0
    split: int = 0
    left_in_doubt: int = 0
    waiting: int = 0
    done: int = 0
    details: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether all is as it has to be."""
        return not (self.lost or self.duplicated or self.split or self.left_in_doubt)


def compare(
    placed: Iterable[int],
    waiting: Iterable[int],
    rows: Iterable[tuple[int, str]],
    invoices: Iterable[tuple[int, str]],
    outcomes: Mapping[str, str],
) -> Audit:
    """The audit of what is there; rows and invoices are (order, gtrid of the transaction that wrote it)."""
    audit = Audit()
    in_queue, in_rows, in_invoices = Counter(waiting), Counter(rows), Counter(invoices)
    audit.waiting, audit.done = in_queue.total(), in_rows.total()

    def note(kind: str, what: Iterable[object], why: str) -> int:
        found = sorted(map(str, what))
        if found:
            audit.details.append(f"{kind}: {why}: {', '.join(found[:10])}")
        return len(found)

    row_of, invoice_of = (Counter(number for number, _ in each.elements()) for each in (in_rows, in_invoices))
    gone = [number for number in placed if not (in_queue[number] or row_of[number] or invoice_of[number])]
    audit.lost += note("lost", gone, "orders that are nowhere")
    attempts = {attempt for _, attempt in in_rows}
    unkept = [gtrid for gtrid, verdict in outcomes.items() if verdict == COMMITTED and gtrid not in attempts]
    audit.lost += note("lost", unkept, "reported committed, without a row")
    for name, counts in (("rows", row_of), ("invoices", invoice_of), ("orders", in_queue)):
        more = [number for number, count in counts.items() if count > 1]
        audit.duplicated += note("duplicated", more, f"more than one of {name}")
    again = [number for number in in_queue if row_of[number] or invoice_of[number]]
    audit.duplicated += note("duplicated", again, "in the queue, and handled")
    undead = [gtrid for gtrid in attempts if outcomes.get(gtrid) == ROLLED_BACK]
    audit.duplicated += note("duplicated", undead, "reported rolled back, with a row")
    audit.split += note("split", (in_rows - in_invoices).elements(), "rows without their invoice")
    audit.split += note("split", (in_invoices - in_rows).elements(), "invoices without their row")
    return audit


class Broker:
    """A broker as proton sees it, however often it loses the connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._counter: SyncRequestResponse | None = None
        """Asks for the depth of queues, again and again: proton keeps more than a megabyte of each connection."""

    def place(self, queue: str, what: Iterable[T], message: Callable[[T], Message]) -> list[T]:
        """Puts messages into the queue; returns what it has acknowledged. Where the connection is lost (a broker whose
        clock jumps takes it for idle) the result of one is unknown, and that one is not sent again."""
        left, placed = iter(what), []
        for _ in range(TRIES):
            try:
                with self._connected() as connection:
                    sender: Any = connection.create_sender(queue)
                    for each in left:
                        sender.send(message(each))
                        placed.append(each)
            except ConnectionException:
                continue
            return placed
        raise ConnectionException(f"{self._url} loses every connection")

    def waiting(self, queue: str) -> int:
        """How many messages wait in the queue, as the broker counts them."""
        for _ in range(TRIES):
            try:
                if self._counter is None:
                    self._counter = _manager(BlockingConnection(self._url, timeout=ASK_S))
                return _depth(self._counter, queue)
            except (ConnectionException, Timeout):
                self.close()
        raise ConnectionException(f"{self._url} loses every connection")

    def browse(self, queue: str) -> list[Any]:
        """The bodies of all messages."""
        return [message.body for message in self._ask(lambda connection: _browse(connection, queue))]

    def letters(self, queue: str) -> list[tuple[Any, dict[str, Any]]]:
        """The bodies of all messages, each with its annotations."""
        found = self._ask(lambda connection: _browse(connection, queue))
        return [(one.body, {str(name): value for name, value in (one.annotations or {}).items()}) for one in found]

    def queues(self) -> list[str]:
        """The names of its queues."""
        return [str(each["name"]) for each in self._ask(lambda one: _manage(_manager(one), "queues"))]

    def in_doubt(self) -> int:
        """How many branches are prepared there."""
        return int(self._ask(lambda connection: _manage(_manager(connection), "status"))["in-doubt"])

    def close(self) -> None:
        """Closes its connections."""
        counter, self._counter = self._counter, None
        if counter is not None:
            with suppress(ConnectionException, Timeout):
                counter.connection.close()

    @contextmanager
    def _connected(self) -> Iterator[BlockingConnection]:
        connection = BlockingConnection(self._url, timeout=ASK_S)
        try:
            yield connection
        finally:
            with suppress(ConnectionException):
                connection.close()

    def _ask(self, question: Callable[[BlockingConnection], Any]) -> Any:
        for _ in range(TRIES):
            with suppress(ConnectionException), self._connected() as connection:
                return question(connection)
        raise ConnectionException(f"{self._url} loses every connection")


class Shop:
    """A PostgreSQL database with the rows."""

    def __init__(self, url: str) -> None:
        self._url = url

    def make(self) -> None:
        """Makes the table."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(TABLE)

    def rows(self, invoices: str) -> list[tuple[int, str]]:
        """Order and gtrid of each row whose invoice belongs into this queue."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute("SELECT number, attempt FROM handled WHERE queue = %s", (invoices,)).fetchall()

    def in_doubt(self) -> list[tuple[str, ...]]:
        """What is prepared."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()


class MariaShop(Shop):
    """A MariaDB database with the rows."""

    def make(self) -> None:
        for statement in TABLE.split(";"):
            self._ask(statement.replace("text", "varchar(200)").replace("CREATE INDEX", "CREATE INDEX by_queue"))

    def rows(self, invoices: str) -> list[tuple[int, str]]:
        return self._ask("SELECT number, attempt FROM handled WHERE queue = %s", invoices)

    def in_doubt(self) -> list[tuple[str, ...]]:
        return self._ask("XA RECOVER")

    def _ask(self, statement: str, *parameters: str) -> list[Any]:
        url = make_url(self._url)
        with (
            pymysql.connect(
                host=url.host,
                port=url.port or 0,
                user=url.username,
                password=url.password or "",
                database=url.database,
                autocommit=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())


class Ledger:
    """`brokers` are the URLs of the one that has the orders and of the second, `databases` those with the rows."""

    def __init__(self, brokers: tuple[str, ...], databases: Mapping[str, str]) -> None:
        self._brokers = tuple(map(Broker, brokers))
        self._shops = {name: MariaShop(url) if name == "mariadb" else Shop(url) for name, url in databases.items()}

    def open(self) -> None:
        """Makes the tables."""
        for shop in self._shops.values():
            shop.make()

    def place(self, queue: str, numbers: Iterable[int]) -> list[int]:
        """Puts orders into the queue at the first broker; those that it has acknowledged."""
        return self._brokers[0].place(queue, numbers, lambda number: Message({"number": number}, durable=True))

    def waiting(self, queue: str) -> int:
        """How many orders wait in the queue, as the broker counts them."""
        return self._brokers[0].waiting(queue)

    def close(self) -> None:
        """Closes its connections."""
        self._brokers[0].close()

    def audit(
        self,
        placed: Iterable[int],
        orders: str,
        invoices: str,
        *,
        database: str,
        second: bool,
        outcomes: Mapping[str, str],
    ) -> Audit:
        """Compares everything of one round. Nothing may be at work."""
        there = self._brokers[1 if second else 0]
        waiting = [body["number"] for body in self._brokers[0].browse(orders)]
        issued = [(body["number"], body["attempt"]) for body in there.browse(invoices)]
        in_database = [branch for shop in self._shops.values() for branch in shop.in_doubt()]
        audit = compare(placed, waiting, self._shops[database].rows(invoices), issued, outcomes)
        at_brokers = [broker.in_doubt() for broker in self._brokers]
        audit.left_in_doubt = len(in_database) + sum(at_brokers)
        if audit.left_in_doubt:
            audit.details.append(f"left in doubt: {at_brokers} at the brokers, {in_database} in the database")
        return audit


def _manager(connection: BlockingConnection) -> SyncRequestResponse:
    return SyncRequestResponse(connection, "$management")


def _manage(manager: SyncRequestResponse, operation: str) -> Any:
    client: Any = manager
    return client.call(Message(properties={"operation": operation})).body


def _depth(manager: SyncRequestResponse, queue: str) -> int:
    return sum(int(each["depth"]) for each in _manage(manager, "queues") if each["name"] == queue)


def _browse(connection: BlockingConnection, queue: str) -> list[Message]:
    """All messages. What is counted in the queue and does not come is not there for anybody."""
    depth = _depth(_manager(connection), queue)
    if not depth:
        return []
    receiver: Any = connection.create_receiver(queue, credit=CREDIT, options=Copy())
    messages = []
    for _ in range(depth):
        try:
            messages.append(receiver.receive(timeout=GONE_S))
        except Timeout:
            break  # what is only looked at comes settled
    return messages
