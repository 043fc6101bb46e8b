"""Django: its ORM works in the transaction of an App, in views and in handlers of messages.

    # shop/bridge.py
    app = App("xabridge.toml")
    orm = DjangoOrm(app, default="shop")    # Django's database "default" is the resource "shop"

    # shop/settings.py
    MIDDLEWARE = [..., "shop.bridge.orm_middleware"]    # orm_middleware = orm.middleware

While the ORM takes part, `django.db.connections["default"]` is a connection object of Django's own class, made for this
transaction, over the branch's psycopg connection. Django believes to be in an atomic block there: `transaction.atomic`
is a savepoint, and commit, rollback, autocommit and `atomic(durable=True)` are refused by Django itself. The thread's
own connection is untouched, and is there again afterwards. In between, a statement on it, or on another database of
`DATABASES`, is refused, because it would be committed on its own. `DjangoOrm(app, default="shop", stock=None)` allows
that for the database "stock".

A savepoint undoes rows of its database, and nothing else. So a transaction is rolled back as a whole if a savepoint is
rolled back after another resource was used in it; and the block that `ATOMIC_REQUESTS` puts around a view is the
transaction itself, and no savepoint.

PostgreSQL only, through psycopg 3, in two phases or as the one that decides; a database of another kind is refused when
the DjangoOrm is made. The ORM takes part in threads; in an event loop Django refuses its use.
"""

from __future__ import annotations

import atexit
import logging
import re
import sys
import threading
import traceback
from asyncio import _get_running_loop
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic

from django.core import checks
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
from tm import Configuration, ConfigurationError, RolledBack, configuration_from
from tm.transaction import resource_name
from xabridge.app import Tx
from xabridge.app.app import Tx_co
from xabridge.frameworks.error_responses import HANDLED, response_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tm import Outcome
    from xabridge.app import App

logger = logging.getLogger("xabridge.frameworks")

_PLACE: Final = "SELECT current_database(), pg_postmaster_start_time()::text, current_schemas(false)::text"
"""What two connections to the same database, on the same server, with the same schemas answer alike."""


class DjangoOrm(Generic[Tx_co]):
    """Databases of Django, each with the name of the resource that it is: `DjangoOrm(app, default="shop")`. Handlers of
    the App's consumers work with them in the transaction of their message. A database with None in place of a name
    takes no part, and may be used all the same: what is done there is committed apart. Others are refused meanwhile."""

    def __init__(self, app: App[Tx_co], **databases: str | None) -> None:
        if not any(databases.values()):
            raise ImproperlyConfigured('DjangoOrm(app, default="shop") says which database is which resource')
        for alias, resource in databases.items():
            _check_database(alias, takes_part=resource is not None)
        if app.is_connected:
            raise ImproperlyConfigured("DjangoOrm: the App runs already; declare it before, beside the App")
        if issubclass(app.transaction, OrmTx):
            raise ImproperlyConfigured("DjangoOrm: the App has one already; name all databases in that one")

        self.app = app
        self.databases = {alias: resource for alias, resource in databases.items() if resource is not None}
        self._apart = databases.keys() - self.databases.keys()
        self._lock = threading.Lock()
        self._same: set[tuple[Any, ...]] = set()
        """The pairs of places, of Django's connection and of the resource's, that were found to be the same."""
        app.add_transaction_class(type("OrmTx", (OrmTx,), {"_orm": self}))
        connection_created.connect(self._watch, weak=False)
        for connection in connections.all(initialized_only=True):
            self._watch(None, connection)
        app.middleware(self._around_handler())
        checks.register(lambda **_: self._check_resources(), "xabridge")

    @contextmanager
    def begin(self, timeout_s: float | None = None) -> Iterator[Tx_co]:
        """`app.begin()`, with the ORM in it."""
        with self.app.begin(timeout_s) as tx, self.take_part(tx):
            yield tx

    @contextmanager
    def take_part(self, tx: Tx) -> Iterator[None]:
        """Lets the ORM work in `tx` in this thread. What `transaction.on_commit` was given is called when `tx` is
        committed, if this block ends without an exception."""
        with ExitStack() as restored:
            joined = [self._join(tx, alias, resource, restored) for alias, resource in self.databases.items()]
            yield
            for connection in joined:
                if connection is not None:
                    connection.hand_over()

    def middleware(self, get_response: Callable[[Any], Any]) -> TransactionMiddleware:
        """The middleware for Django's MIDDLEWARE: each request is one transaction."""
        return TransactionMiddleware(self, get_response)

    def connect(self) -> None:
        """Opens the App's transaction manager at the first request of a process, unless it is open. No consumer
        starts."""
        if not self.app.is_connected:
            _check_no_test_run()
            with self._lock:
                if not self.app.is_connected:
                    self.app.connect()
                    atexit.register(self.app.disconnect)

    def check_begin(self) -> None:
        """Checks that a transaction may begin in this thread. TransactionManagementError: a database of it is in a
        transaction of Django's own, which would end apart. ImproperlyConfigured: a test would use what is real."""
        for connection in connections.all(initialized_only=True):
            if connection.alias in self.databases:
                _check_not_in_transaction(connection)
        if not self.app.is_under_test:
            _check_no_test_run()

    def joined(self, tx: Tx) -> list[BranchDatabase]:
        """The connection objects of this thread that work in `tx`."""
        found = (connections[alias] for alias in self.databases)
        return [one for one in found if isinstance(one, BranchDatabase) and one.xabridge_tx is tx]

    def check_same(self, branch: Any, wanted: Mapping[str, Any]) -> None:
        """ImproperlyConfigured: what Django connects to with the parameters `wanted` is another database than that of
        the branch, or other schemas. Where both have the same server and user by their names, no server is asked."""
        info = branch.connection.info
        pair = tuple(
            (str(wanted.get(name) or ""), str(found))
            for name, found in (("host", info.host), ("port", info.port), ("user", info.user), ("dbname", info.dbname))
        )
        if pair in self._same:
            return
        if any(given != found for given, found in pair):
            _check_same_place(branch, f"{info.host}:{info.port}")
        self._same.add(pair)

    def _check_resources(self) -> list[checks.CheckMessage]:
        """Whether the configuration of the App has the resources; for `manage.py check`."""
        given = self.app.configuration
        try:
            configuration = given if isinstance(given, Configuration) else configuration_from(given, None)
        except ConfigurationError as error:
            return [checks.Warning(f"DjangoOrm: the configuration of the App can't be read: {error}", id="xabridge.W1")]
        known = ", ".join(configuration.resources) or "none"
        return [
            checks.Error(
                f'DjangoOrm: the database "{alias}" is to be the resource {resource}, which the configuration does not '
                f"have (it has: {known})",
                id="xabridge.E1",
            )
            for alias, resource in self.databases.items()
            if resource not in configuration.resources
        ]

    def _join(self, tx: Tx, alias: str, resource: str, restored: ExitStack) -> BranchDatabase | None:
        own = connections[alias]
        if isinstance(own, BranchDatabase) and own.xabridge_tx is tx:
            return None  # it takes part already
        _check_not_in_transaction(own)
        joined: BranchDatabase = _branch_class(_plain_class(own))(own, self, tx, resource)
        connections[alias] = joined
        restored.callback(connections.__setitem__, alias, own)
        return joined

    def _around_handler(self) -> Callable[[Tx], Iterator[None]]:
        def orm(tx: Tx) -> Iterator[None]:
            if _get_running_loop() is not None:  # the thread's connections are those of other tasks, too
                yield
                return
            for connection in connections.all(initialized_only=True):  # as Django does before each request
                if not connection.in_atomic_block:
                    connection.close_if_unusable_or_obsolete()
            with self.take_part(tx):
                yield

        return orm

    def _watch(self, sender: Any, connection: Any, **_: Any) -> None:  # noqa: ARG002 — the signal's
        """Has statements on a connection of Django's own refused while a transaction of the App is active."""
        if connection.alias in self._apart or isinstance(connection, BranchDatabase):
            return
        if self.refuse not in connection.execute_wrappers and not getattr(connection, "xabridge_asks", False):
            connection.execute_wrappers.append(self.refuse)

    def refuse(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Carries out a statement on a connection of Django's own, which TransactionManagementError refuses while a
        transaction of the App is active."""
        tx = self.app.current_or_none()
        if tx is not None:
            alias = context["connection"].alias
            raise TransactionManagementError(
                f'the database "{alias}" does not take part in {tx}, which is active: this statement would be '
                "committed apart from it. "
                + (
                    "Begin with orm.begin() in place of app.begin(), or work in `with orm.take_part(tx):`"
                    if alias in self.databases
                    else f'Say which resource it is, DjangoOrm(..., {alias}="..."), or allow it: {alias}=None'
                )
            )
        return execute(sql, params, many, context)


class OrmTx(Tx):
    """A transaction of an App that has a DjangoOrm. It counts the uses of its resources, so that a savepoint that is
    rolled back knows whether it has undone everything."""

    _orm: ClassVar[Any] = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._orm.check_begin()
        self._uses: Counter[str] = Counter()
        super().__init__(*arguments, **named)

    def __getitem__(self, name: str) -> Any:
        self._uses[name] += 1
        return super().__getitem__(name)

    def enlist(self, name: str) -> Any:
        self._uses[name] += 1
        return super().enlist(name)

    async def aenlist(self, name: Any) -> Any:
        name = resource_name(name)
        self._uses[name] += 1
        return await super().aenlist(name)

    def uses(self) -> Counter[str]:
        """How often each resource was asked for, those without savepoints of Django's."""
        return Counter({name: n for name, n in self._uses.items() if name not in self._orm.databases.values()})

    def register_synchronization(
        self, before: Callable[[], object] | None = None, after: Callable[[Outcome], object] | None = None
    ) -> None:
        super().register_synchronization(before and self._with_orm(before), after)

    def _with_orm(self, before: Callable[[], object]) -> Callable[[], object]:
        """`before`, which runs when the block that the ORM took part in has ended, with the ORM in it again."""

        def call() -> object:
            if _get_running_loop() is not None:
                return before()
            with self._orm.take_part(self):
                return before()

        return call


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
                self._check_done(request, response)
        except _NotDone as undone:
            return undone.response
        except HANDLED as error:
            return _answer(request, error)
        return response

    def process_view(self, request: Any, view: Any, arguments: Any, named: Any) -> None:  # noqa: ARG002 — Django's
        """Django's hook: the view is to be called, in a block for each database with ATOMIC_REQUESTS."""
        apart = getattr(view, "_non_atomic_requests", ())
        for connection in self._orm.joined(request.tx):
            connection.is_block_whole = connection.settings_dict["ATOMIC_REQUESTS"] and connection.alias not in apart

    def process_exception(self, request: Any, exception: Exception) -> Any:
        """Django's hook: the view has raised. What the RESPONSES name is answered as they say."""
        request.xabridge_failed = True
        return _answer(request, exception) if isinstance(exception, HANDLED) else None

    def _check_done(self, request: Any, response: Any) -> None:
        """_NotDone: the answer says that the request has failed, or Django wants a rollback and the answer does not say
        that all is well, as that of an API which answers 400 after `set_rollback`."""
        failed = request.xabridge_failed or response.status_code >= 500
        if failed or (response.status_code >= 400 and any(one.is_doomed for one in self._orm.joined(request.tx))):
            raise _NotDone(response)


def _answer(request: Any, error: Exception) -> JsonResponse:
    """The answer to a request whose transaction was not committed."""
    logger.warning("%s %s: %s", request.method, request.path, error)
    status, detail, headers = response_for(error)
    return JsonResponse({"detail": detail}, status=status, headers=headers)


class _NotDone(Exception):
    """Rolls the transaction of a request back, whose answer is there."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response = response


class BranchDatabase(BaseDatabaseWrapper):  # type: ignore[misc]  # Django has no types
    """A connection object of Django's, in the middle of a branch's transaction. It is mixed in before the class that
    the database's ENGINE has. The resource is enlisted when Django connects, at the first use."""

    connection: Any
    run_on_commit: list[tuple[Any, Callable[[], Any], bool]]
    savepoint_ids: list[Any]
    needs_rollback: bool
    rollback_exc: BaseException | None
    pool = None  # a pool of Django's is for connections of Django's own

    def __init__(self, own: Any, orm: DjangoOrm, tx: Tx, resource: str) -> None:
        super().__init__(own.settings_dict, own.alias)
        self.xabridge_tx = tx
        self.is_block_whole = False
        """Whether the next block is that around a view: it is the whole transaction, and no savepoint."""
        self._is_undone = False
        self._orm = orm
        self._resource = resource
        self._uses_at: dict[str, Counter[str]] = {}
        self.in_atomic_block = True
        self.atomic_blocks = [Atomic(own.alias, savepoint=True, durable=False)]  # so that durable=True is refused
        # the queries of this database are counted and logged here
        self.queries_log, self.force_debug_cursor = own.queries_log, own.force_debug_cursor
        self.execute_wrappers = [one for one in own.execute_wrappers if one != orm.refuse]

    @property
    def is_doomed(self) -> bool:
        """Whether Django wants the transaction to be rolled back, or it has to be because of a savepoint."""
        return bool(self.needs_rollback or self.closed_in_transaction or self._is_undone)

    def hand_over(self) -> None:
        """At the end: the transaction calls what `on_commit` was given. RolledBack: Django wants a rollback because of
        an error; it has the place of that."""
        callbacks, self.run_on_commit = self.run_on_commit, []
        if self.needs_rollback or self.closed_in_transaction:
            error = self.rollback_exc if self.needs_rollback else None
            why = f"the database {self.alias!r} is to be rolled back by Django: {self._why_doomed(error)}"
            self.xabridge_tx.set_rollback_only(why)
            if error is not None:
                refused = RolledBack(f"transaction {self.xabridge_tx} was rolled back: {why}")
                raise refused.with_traceback(error.__traceback__) from error
            return
        for _, function, _ in callbacks:
            self.xabridge_tx.after_commit(function)

    def _why_doomed(self, error: BaseException | None) -> str:
        if self.closed_in_transaction:
            return "its connection was closed"
        if error is None:
            return "set_rollback(True) was called, or an atomic block without a savepoint has failed"
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[0].filename}:{frames[0].lineno})" if frames else ""
        advice = "Put what may fail, and is caught, into a block of its own: transaction.atomic()"
        return f"{_in_one_line(error)}{place}. {advice}"

    def savepoint(self) -> Any:
        if self.is_block_whole and not self.savepoint_ids:
            self.is_block_whole = False
            return None
        sid = super().savepoint()
        self._uses_at[sid] = self._uses()
        return sid

    def savepoint_rollback(self, sid: str) -> None:
        super().savepoint_rollback(sid)
        self.rollback_exc = None  # what has failed is undone
        used = self._uses() - self._uses_at.get(sid, Counter())
        tx = self.xabridge_tx
        if used and not tx.is_over and not self._is_undone:
            self._is_undone = True
            error = sys.exc_info()[1]
            because = f" ({_in_one_line(error)})" if error is not None else ""
            tx.set_rollback_only(
                f'a block of transaction.atomic on the database "{self.alias}" was rolled back{because} after '
                f"{' and '.join(map(repr, sorted(used)))} was used in it, which a savepoint does not undo: send behind "
                "the block, or let its error leave the transaction"
            )

    def savepoint_commit(self, sid: str) -> None:
        super().savepoint_commit(sid)
        self._uses_at.pop(sid, None)

    def _uses(self) -> Counter[str]:
        tx = self.xabridge_tx
        return tx.uses() if isinstance(tx, OrmTx) else Counter()

    def _cursor(self, name: str | None = None) -> Any:
        tx = self.xabridge_tx
        if tx.suspended:
            raise TransactionManagementError(
                f'the database "{self.alias}" works in {tx}, which is suspended: with REQUIRES_NEW, work in '
                "`with orm.take_part(app.tx):`; without a transaction, the ORM can be used before or after this one"
            )
        if self.connection is not None and self.connection.closed and not tx.is_over:  # it was suspended meanwhile
            with self.wrap_database_errors:
                self.connection = self.get_new_connection(self.get_connection_params())
        return super()._cursor(name)

    def connect(self) -> None:
        blocks, savepoints, callbacks = self.atomic_blocks, self.savepoint_ids, self.run_on_commit
        needs_rollback = self.needs_rollback
        super().connect()  # which begins with no block
        self.autocommit, self.in_atomic_block = False, True
        self.atomic_blocks, self.savepoint_ids, self.run_on_commit = blocks, savepoints, callbacks
        self.needs_rollback = needs_rollback
        try:
            self._orm.check_same(self, self.get_connection_params())
        except BaseException:
            self.connection = None
            raise

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
        return connection

    def _configure_connection(self, connection: Any) -> bool:
        """Sets, for Django's `init_connection_state`, what the connection needs in this transaction; nothing is to be
        committed."""
        options = self.settings_dict["OPTIONS"]
        if "isolation_level" in options:
            connection.isolation_level = options["isolation_level"]
        wanted: dict[str, Any] = {}
        if options.get("options") != connection.info.get_parameters().get("options"):
            wanted.update(_server_settings(self.alias, options.get("options") or ""))
        further = {"TimeZone": self.timezone_name, "role": options.get("assume_role")}
        wanted.update({k: v for k, v in further.items() if v and connection.info.parameter_status(k) != v})
        if wanted:
            calls = ", ".join(["set_config(%s, %s, true)"] * len(wanted))
            connection.execute(f"SELECT {calls}", [word for pair in wanted.items() for word in pair])
        return False

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


def _check_database(alias: str, *, takes_part: bool) -> None:
    """ImproperlyConfigured: there is no such database, or its ORM can't take part. Nothing is connected."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(f'"{name}"' for name in connections)
        raise ImproperlyConfigured(f'DjangoOrm: DATABASES has no "{alias}"; it has {known}') from None
    if takes_part and connection.vendor != "postgresql":
        raise ImproperlyConfigured(
            f'DjangoOrm: the database "{alias}" is {connection.display_name}, and the ORM takes part in transactions '
            'with PostgreSQL only: set its ENGINE to "django.db.backends.postgresql", or leave it out here. Without '
            'the ORM, other databases take part as resources: tx["shop"] is a SQLAlchemy connection'
        )


def _check_not_in_transaction(connection: Any) -> None:
    """TransactionManagementError: it is in a transaction of Django's own."""
    if isinstance(connection, BranchDatabase):
        return
    if connection.in_atomic_block or (connection.connection and not connection.autocommit):
        raise TransactionManagementError(
            f'the database "{connection.alias}" is in a transaction of Django\'s own, which would end apart from that '
            "of the App: begin the one of the App outside of transaction.atomic and ATOMIC_REQUESTS; in tests, use "
            "TransactionTestCase in place of TestCase"
        )


def _check_no_test_run() -> None:
    """ImproperlyConfigured: Django's test runner is at work, and the App is not under test."""
    utils = sys.modules.get("django.test.utils")  # a server has not loaded it
    if utils is not None and hasattr(utils._TestState, "saved_data"):  # noqa: SLF001 — Django has no other sign
        raise ImproperlyConfigured(
            "Django's test runner is at work, and the App has the resources of its configuration: messages would be "
            "sent to its real broker. Work in `with TestApp(app, ...):` (xabridge.testing)"
        )


def _check_same_place(branch: Any, place: str) -> None:
    """ImproperlyConfigured: a connection of Django's own and the branch's are to different databases, or schemas."""
    own = _plain_class(branch)(branch.settings_dict, branch.alias)
    own.xabridge_asks = True
    try:
        own.connect()
        own_place = own.connection.execute(_PLACE).fetchone()
    finally:
        own.close()

    found = branch.connection.execute(_PLACE).fetchone()
    if own_place[:2] != found[:2]:
        settings = branch.settings_dict
        raise ImproperlyConfigured(
            f'the database "{branch.alias}" is at {settings["HOST"]}:{settings["PORT"]}, and its resource is at '
            f"{place}, which is another server: both have to be the same"
        )
    if own_place[2] != found[2]:
        raise ImproperlyConfigured(
            f'the database "{branch.alias}" has the schemas {own_place[2]}, and its resource has {found[2]}: both have '
            'to be the same. Set search_path in OPTIONS["options"] of DATABASES'
        )


def _server_settings(alias: str, options: str) -> dict[str, str]:
    """The settings in a value of `options`, as `-c search_path=shop` or `--search_path=shop`."""
    words = re.findall(r"(?:\\.|\S)+", options)
    settings = {}
    while words:
        word = re.sub(r"\\(.)", r"\1", words.pop(0))
        if word == "-c" and words:
            word += re.sub(r"\\(.)", r"\1", words.pop(0))
        name, is_set, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if word[:2] not in ("-c", "--") or not is_set or name.startswith("default_transaction"):
            raise ImproperlyConfigured(
                f'the database "{alias}": OPTIONS["options"] has {word!r}, which can\'t be set within a transaction: '
                "put all of these options into the URL of the resource, too (?options=...)"
            )
        settings[name] = value
    return settings


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' · '.join(str(error).split(chr(10)))}"


@cache
def _branch_class(kind: type) -> Any:
    return type("BranchOf" + kind.__name__, (BranchDatabase, kind), {})


@cache
def _cursor_class(wanted: type) -> type:
    """The branch's cursor, which sends parameters as Django's `wanted` does."""
    from django.db.backends.postgresql.base import CursorMixin  # noqa: PLC0415 — other databases need no psycopg

    binding = (ClientCursorMixin,) if issubclass(wanted, ClientCursorMixin) else ()
    return type("BranchCursor", (CursorMixin, *binding, PsycopgCursor), {})
