"""Django: its ORM works in the transaction of an App, in views and in handlers of messages.

    # shop/bridge.py
    app = App("xabridge.toml")
    orm = DjangoOrm(app, default="shop")    # Django's database "default" is the resource "shop"

    # shop/settings.py
    MIDDLEWARE = [..., "shop.bridge.orm_middleware"]    # orm_middleware = orm.middleware

While the ORM takes part, `django.db.connections["default"]` is a connection object of Django's own class, made for this
transaction, over the branch's psycopg connection. Django believes to be in an atomic block there: `transaction.atomic`
is a savepoint, and commit, rollback, autocommit and `atomic(durable=True)` are refused by Django itself. The thread's
own connection is untouched, and is there again afterwards. In between, a statement on it is refused, because it would
be committed on its own.

PostgreSQL only, through psycopg 3, in two phases or as the one that decides; a database of another kind is refused when
the DjangoOrm is made. The ORM takes part in threads; in an event loop Django refuses its use.
"""

from __future__ import annotations

import atexit
import threading
from asyncio import _get_running_loop
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import Atomic, TransactionManagementError
from django.db.utils import ConnectionDoesNotExist
from django.http import JsonResponse
from psycopg.client_cursor import ClientCursorMixin

from rm_db import PostgresBranchConnection
from rm_db.sessions.psycopg_connection import PsycopgCursor
from xabridge.app import Tx  # noqa: TC001 — the App reads the types of a middleware's parameters
from xabridge.frameworks.answers import ANSWERED, answer_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xabridge.app import App


class DjangoOrm:
    """Databases of Django, each with the name of the resource that it is: `DjangoOrm(app, default="shop")`. Handlers of
    the App's consumers work with them in the transaction of their message."""

    def __init__(self, app: App, **databases: str) -> None:
        if not databases:
            raise ImproperlyConfigured('DjangoOrm(app, default="shop") says which database is which resource')
        for alias in databases:
            _check_engine(alias)
        self.app = app
        self.databases = databases
        self._lock = threading.Lock()
        connection_created.connect(self._watch, weak=False)
        for connection in connections.all(initialized_only=True):
            self._watch(None, connection)
        app.middleware(self._around_handler())

    @contextmanager
    def begin(self, timeout_s: float | None = None) -> Iterator[Any]:
        """`app.begin()`, with the ORM in it."""
        with self.app.begin(timeout_s) as tx, self.take_part(tx):
            yield tx

    @contextmanager
    def take_part(self, tx: Tx) -> Iterator[None]:
        """In this thread, the ORM works in `tx`. What `transaction.on_commit` was given is called when `tx` is
        committed, if this block ends without an exception."""
        with ExitStack() as restored:
            joined = [self._join(tx, alias, resource, restored) for alias, resource in self.databases.items()]
            yield
            for connection in joined:
                if connection is not None:
                    connection.hand_over()

    def middleware(self, get_response: Callable[[Any], Any]) -> TransactionMiddleware:
        """For Django's MIDDLEWARE: each request is one transaction."""
        return TransactionMiddleware(self, get_response)

    def connect(self) -> None:
        """For whoever serves requests: opens the App's transaction manager at the first request of a process, unless it
        is open. No consumer starts."""
        if not self.app.is_connected:
            with self._lock:
                if not self.app.is_connected:
                    self.app.connect()
                    atexit.register(self.app.disconnect)

    def _join(self, tx: Tx, alias: str, resource: str, restored: ExitStack) -> BranchDatabase | None:
        own = connections[alias]
        if isinstance(own, BranchDatabase) and own.xabridge_tx is tx:
            return None  # it takes part already
        if not isinstance(own, BranchDatabase) and (own.in_atomic_block or (own.connection and not own.autocommit)):
            raise TransactionManagementError(
                f'the database "{alias}" is in a transaction of Django\'s own, which would commit apart from {tx}: '
                "begin the transaction of the App outside of transaction.atomic and ATOMIC_REQUESTS; in tests, use "
                "TransactionTestCase in place of TestCase"
            )
        joined: BranchDatabase = _branch_class(_plain_class(own))(own, tx, resource)
        connections[alias] = joined
        restored.callback(connections.__setitem__, alias, own)
        return joined

    def _around_handler(self) -> Callable[[Tx], Iterator[None]]:
        def orm(tx: Tx) -> Iterator[None]:
            if _get_running_loop() is not None:  # the thread's connections are those of other tasks, too
                yield
                return
            with self.take_part(tx):
                yield

        return orm

    def _watch(self, sender: Any, connection: Any, **_: Any) -> None:  # noqa: ARG002 — the signal's
        """Has statements on a connection of Django's own refused while a transaction of the App is active."""
        if connection.alias not in self.databases or isinstance(connection, BranchDatabase):
            return
        if self._refuse not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._refuse)

    def _refuse(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        tx = self.app.current_or_none()
        if tx is not None:
            alias = context["connection"].alias
            raise TransactionManagementError(
                f'the database "{alias}" does not take part in {tx}, which is active: this statement would be '
                "committed apart from it. Begin with orm.begin() in place of app.begin(), or work in "
                "`with orm.take_part(tx):`"
            )
        return execute(sql, params, many, context)


class TransactionMiddleware:
    """Makes each request one transaction, which is `request.tx`. It is committed before the answer is sent.
    An exception of the view, or an answer with a status of 500 or more, rolls it back. Middlewares before this one, and
    the content of streaming answers, are outside of it."""

    sync_capable = True
    async_capable = False

    def __init__(self, orm: DjangoOrm, get_response: Callable[[Any], Any]) -> None:
        self._orm = orm
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        try:
            self._orm.connect()
            with self._orm.begin() as tx:
                request.tx = tx
                request.xabridge_failed = False
                response = self._get_response(request)
                _check_done(request, response)
        except _NotDone as undone:
            return undone.response
        except ANSWERED as error:
            status, told, headers = answer_for(error)
            return JsonResponse({"detail": told}, status=status, headers=headers)
        return response

    def process_exception(self, request: Any, exception: Exception) -> Any:
        """Django's hook: the view has raised. What the ANSWERS name is answered as they say."""
        request.xabridge_failed = True
        if isinstance(exception, ANSWERED):
            status, told, headers = answer_for(exception)
            return JsonResponse({"detail": told}, status=status, headers=headers)
        return None


def _check_done(request: Any, response: Any) -> None:
    if request.xabridge_failed or response.status_code >= 500:
        raise _NotDone(response)


class _NotDone(Exception):
    """Rolls the transaction of a request back, whose answer is there."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response = response


class BranchDatabase(BaseDatabaseWrapper):  # type: ignore[misc]  # Django has no types
    """A connection object of Django's, in the middle of a branch's transaction. It is mixed in before the class that
    the database's ENGINE has. The resource is enlisted when Django connects, at the first use."""

    run_on_commit: list[tuple[Any, Callable[[], Any], bool]]
    savepoint_ids: list[Any]
    needs_rollback: bool

    def __init__(self, own: Any, tx: Tx, resource: str) -> None:
        super().__init__(own.settings_dict, own.alias)
        self.xabridge_tx = tx
        self._resource = resource
        self.in_atomic_block = True
        self.atomic_blocks = [Atomic(own.alias, savepoint=True, durable=False)]  # so that durable=True is refused

    def hand_over(self) -> None:
        """At the end: the transaction calls what `on_commit` was given, and is rolled back if Django wants that."""
        callbacks, self.run_on_commit = self.run_on_commit, []
        if self.needs_rollback or self.closed_in_transaction:
            self.xabridge_tx.set_rollback_only(
                "Django asked for it: an atomic block has failed, or the connection was closed"
            )
            return
        for _, function, _ in callbacks:
            self.xabridge_tx.after_commit(function)

    def connect(self) -> None:
        blocks, savepoints, callbacks = self.atomic_blocks, self.savepoint_ids, self.run_on_commit
        needs_rollback = self.needs_rollback
        super().connect()  # which begins with no block
        self.autocommit, self.in_atomic_block = False, True
        self.atomic_blocks, self.savepoint_ids, self.run_on_commit = blocks, savepoints, callbacks
        self.needs_rollback = needs_rollback

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        session = self.xabridge_tx[self._resource]
        if not isinstance(session, PostgresBranchConnection):
            raise ImproperlyConfigured(
                f"{self._resource} is {type(session).__name__}: Django takes part in PostgreSQL only"
            )
        connection = session.psycopg_with(conn_params["context"].adapters)
        name = conn_params.get("dbname")
        if name and connection.info.dbname != name:
            raise ImproperlyConfigured(
                f'the database "{self.alias}" is {name}, and the resource {self._resource} is '
                f"{connection.info.dbname}: both have to be the same"
            )
        connection.cursor_factory = _cursor_class(conn_params["cursor_factory"])
        if "isolation_level" in self.settings_dict["OPTIONS"]:
            connection.isolation_level = self.settings_dict["OPTIONS"]["isolation_level"]
        return connection

    def init_connection_state(self) -> None:
        BaseDatabaseWrapper.init_connection_state(self)
        options = self.settings_dict["OPTIONS"]
        for setting, value in (("TimeZone", self.timezone_name), ("role", options.get("assume_role"))):
            if value and self.connection.info.parameter_status(setting) != value:
                self.connection.execute("SELECT set_config(%s, %s, true)", (setting, value))  # for this transaction

    def chunked_cursor(self) -> Any:
        return self.cursor()  # a cursor with a name would have to be closed before the transaction is prepared

    def close_if_unusable_or_obsolete(self) -> None:
        """Does nothing: the connection is the transaction's, and as old as that."""

    def _set_autocommit(self, autocommit: bool) -> None:
        """Does nothing: Django refuses it in an atomic block, and asks for it when it connects."""

    def _close(self) -> None:
        """Does nothing: Django notes that it has closed it, so that the transaction is rolled back."""


def _plain_class(connection: Any) -> type:
    """The class that the database's ENGINE has."""
    kind = type(connection)
    return kind.__mro__[2] if isinstance(connection, BranchDatabase) else kind


def _check_engine(alias: str) -> None:
    """ImproperlyConfigured: there is no such database, or its ORM can't take part. Nothing is connected."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(f'"{name}"' for name in connections)
        raise ImproperlyConfigured(f'DjangoOrm: DATABASES has no "{alias}"; it has {known}') from None
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(
            f'DjangoOrm: the database "{alias}" is {connection.display_name}, and the ORM takes part in transactions '
            'with PostgreSQL only: set its ENGINE to "django.db.backends.postgresql", or leave it out here. Without '
            'the ORM, other databases take part as resources: tx["shop"] is a SQLAlchemy connection'
        )


@cache
def _branch_class(kind: type) -> Any:
    return type("BranchOf" + kind.__name__, (BranchDatabase, kind), {})


@cache
def _cursor_class(wanted: type) -> type:
    """The branch's cursor, which sends parameters as Django's `wanted` does."""
    from django.db.backends.postgresql.base import CursorMixin  # noqa: PLC0415 — other databases need no psycopg

    binding = (ClientCursorMixin,) if issubclass(wanted, ClientCursorMixin) else ()
    return type("BranchCursor", (CursorMixin, *binding, PsycopgCursor), {})
