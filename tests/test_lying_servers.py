"""These tests put every driver before servers that lie (`tests.lying_server`), in every phase: each wait ends, with an
error that the driver declares, in bounded memory, and no transaction is told an outcome that it does not have."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy import make_url

from dtx.broker.broker import rehearse_start
from dtx.store.contract import StoreError
from dtx.store.sql.inspection import look_at_store
from rm_amqp import AmqpResource, DecidingBroker
from rm_amqp.amqp010.resource import QpidResource
from rm_db import DecidingDatabase, MariaResource, PostgresResource
from rm_openwire import OpenWireResource
from tests.broker_j import BrokerJ
from tests.lying_server import Lie, LyingServer, Protocol
from tests.postgres import Postgres
from tests.rm_amqp.amqp010.test_contract import QpidHarness
from tests.rm_amqp.decider.deciding import DecidingBrokerHarness
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.test_contract import VARIANTS, AmqpHarness
from tests.rm_db.harness import MariaDeciderHarness, MariaHarness, PostgresDeciderHarness, PostgresHarness
from tests.rm_openwire.java_brokers import BROKERS
from tests.rm_openwire.test_contract import OpenWireHarness
from tests.tm.log.samples import decision
from tm import TransactionManager
from tm.log.contract import LogError, LogStopped
from tm.log.sql import SqlLog
from tm.log.sql.database import Database
from tm.log.sql.retry import PAUSES_S
from xa import ROLLBACK_CODES, TMONEPHASE, Code, XaError, Xid
from xabridge.cli.main import main
from xabridge.exit_codes import Exit
from xabridge.outbox.publisher import BrokerAway
from xabridge.outbox.rabbitmq import RabbitPublisher
from xabridge.testing.contract.client import RMID, Client, ScriptedRegistrar, new_key, new_xid

BOUND_S = 20.0
"""No call takes longer, whatever its server says: a few times the settings below, on a machine that is busy."""
PATIENCE_S = 90.0
"""How long a true server may take to come to an end, on a machine that is busy."""
MEMORY = 300 << 20
"""Octets by which the process may grow while servers send it a gigabyte each."""


def rm_opens(make: Callable[[Any], Any], url: str) -> Callable[[int], None]:
    """How a resource manager is opened at a port."""

    def opens(port: int) -> None:
        rm = make(ScriptedRegistrar())
        with pytest.raises(XaError) as raised:
            rm.open(url.format(port=port), RMID)
        assert raised.value.code in {Code.XAER_RMFAIL, Code.XAER_RMERR, Code.XA_RETRY}, raised.value

    return opens


def diagnoses(make: Callable[[Any], Any], url: str) -> Callable[[int], None]:
    """How `xabridge doctor` looks at a server."""

    def looks(port: int) -> None:
        checks = make(ScriptedRegistrar()).diagnose(url.format(port=port)).checks
        assert any(check.health.name == "FAIL" for check in checks), checks

    return looks


def log_opens(port: int) -> None:
    with pytest.raises(LogError):
        SqlLog(f"postgresql://u:secret@127.0.0.1:{port}/d?connect_timeout=2", "n", sleep=lambda _: None)


def relay_opens(scheme: str) -> Callable[[int], None]:
    def opens(port: int) -> None:
        with pytest.raises(BrokerAway):
            RabbitPublisher(f"{scheme}://127.0.0.1:{port}", connect_s=0.3).open()

    return opens


def store_is_looked_at(port: int) -> None:
    with pytest.raises(StoreError):
        look_at_store(f"postgresql://u:secret@127.0.0.1:{port}/d?connect_timeout=2", rehearse_start)


AMQP = "amqp://127.0.0.1:{port}/?timeout=0.3&connect_timeout=0.3"
POSTGRES = "postgresql://u:secret@127.0.0.1:{port}/d?connect_timeout=2&xa_reply_s=0.3"
MARIADB = "mariadb://u:secret@127.0.0.1:{port}/d?connect_timeout=1&xa_reply_s=0.3"

STRANGERS: dict[str, tuple[Protocol, Callable[[int], None]]] = {
    "AMQP 1.0": (Protocol.AMQP_10, rm_opens(AmqpResource, AMQP)),
    "AMQP 1.0 with TLS": (Protocol.AMQP_10, rm_opens(AmqpResource, AMQP.replace("amqp:", "amqps:"))),
    "AMQP 1.0 that decides": (Protocol.AMQP_10, rm_opens(DecidingBroker, f"decider+{AMQP}")),
    "AMQP 0-10": (Protocol.AMQP_010, rm_opens(QpidResource, AMQP.replace("amqp:", "amqp010:"))),
    "AMQP 0-10 with TLS": (Protocol.AMQP_010, rm_opens(QpidResource, AMQP.replace("amqp:", "amqp010s:"))),
    "OpenWire": (Protocol.OPENWIRE, rm_opens(OpenWireResource, AMQP.replace("amqp:", "openwire:"))),
    "OpenWire with TLS": (Protocol.OPENWIRE, rm_opens(OpenWireResource, AMQP.replace("amqp:", "openwire+ssl:"))),
    "PostgreSQL": (Protocol.POSTGRES, rm_opens(PostgresResource, POSTGRES)),
    "PostgreSQL with TLS": (Protocol.POSTGRES, rm_opens(PostgresResource, f"{POSTGRES}&sslmode=require")),
    "PostgreSQL that decides": (Protocol.POSTGRES, rm_opens(DecidingDatabase, POSTGRES)),
    "MariaDB": (Protocol.MARIADB, rm_opens(MariaResource, MARIADB)),
    "MariaDB that decides": (Protocol.MARIADB, rm_opens(DecidingDatabase, f"mysql+pymysql{MARIADB[7:]}")),
    "a relay to RabbitMQ": (Protocol.AMQP_091, relay_opens("amqp091")),
    "a relay to RabbitMQ with TLS": (Protocol.AMQP_091, relay_opens("amqp091s")),
    "a log in PostgreSQL": (Protocol.POSTGRES, log_opens),
    "a broker's store in PostgreSQL": (Protocol.POSTGRES, store_is_looked_at),
    "doctor: AMQP 1.0": (Protocol.AMQP_10, diagnoses(AmqpResource, AMQP)),
    "doctor: AMQP 0-10": (Protocol.AMQP_010, diagnoses(QpidResource, AMQP.replace("amqp:", "amqp010:"))),
    "doctor: OpenWire": (Protocol.OPENWIRE, diagnoses(OpenWireResource, AMQP.replace("amqp:", "openwire:"))),
    "doctor: PostgreSQL": (Protocol.POSTGRES, diagnoses(PostgresResource, POSTGRES)),
    "doctor: MariaDB": (Protocol.MARIADB, diagnoses(MariaResource, MARIADB)),
    "doctor: MariaDB that decides": (Protocol.MARIADB, diagnoses(DecidingDatabase, f"mysql+pymysql{MARIADB[7:]}")),
}


def in_time(call: Callable[[], Any]) -> Any:
    """What a call returns; it may not take longer, whatever the server says."""
    begun = time.monotonic()
    result = call()
    lasted = time.monotonic() - begun
    assert lasted <= BOUND_S, f"took {lasted:.1f} s"
    return result


def all_at_once(cases: Iterable[tuple[str, Callable[[], None]]], threads: int = 48) -> None:
    """Runs the cases in so many threads, all of them within the memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def run(one: tuple[str, Callable[[], None]]) -> str | None:
        name, case = one
        try:
            case()
        except BaseException as error:  # noqa: BLE001 — all cases are reported
            return f"{name}: {type(error).__name__}: {error}"
        return None

    with ThreadPoolExecutor(threads) as pool:
        wrong = [why for why in pool.map(run, cases) if why is not None]
    assert not wrong, "\n".join(wrong)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MEMORY, f"grew by {grown >> 20} MB"


@pytest.mark.slow
def test_what_answers_there_lies_from_the_beginning() -> None:
    def case(protocol: Protocol, opens: Callable[[int], None], lie: Lie) -> Callable[[], None]:
        def run() -> None:
            with LyingServer(protocol) as server:
                server.lie(lie)
                in_time(partial(opens, server.port))

        return run

    all_at_once((f"{kind}, {lie.value}", case(*STRANGERS[kind], lie)) for lie in Lie for kind in STRANGERS)


# --- verbs ------------------------------------------------------------------------------------------------------------
LOST = frozenset({Code.XAER_RMFAIL, Code.XA_RETRY})
VERBS: dict[str, frozenset[Code]] = {
    "open": LOST | {Code.XAER_RMERR},
    "start": LOST | {Code.XA_OK, Code.XAER_RMERR},
    "prepare": LOST | ROLLBACK_CODES,
    "commit in one phase": ROLLBACK_CODES | {Code.XAER_RMFAIL},
    "commit": LOST,
    "rollback": LOST | ROLLBACK_CODES | {Code.XA_OK},
    "rollback of what is prepared": LOST,
    "recover": LOST | {Code.XAER_RMERR},
    "decide": ROLLBACK_CODES | {Code.XAER_RMFAIL},
}
"""A verb → what it may say where the server was asked, and its reply is a lie."""
TWO_PHASES = tuple(verb for verb in VERBS if verb != "decide")
ONE_PHASE = ("open", "start", "commit in one phase", "rollback", "decide")
RECORD = b"the decision"


def patiently(call: Callable[[], Any]) -> Any:
    """Until it succeeds: a true server that is busy does not always answer in time."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except XaError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


class Behind:
    """A client of a harness's resource, behind a server that lies when a test wants it."""

    def __init__(self, harness: Any, protocol: Protocol, settings: str) -> None:
        before, _, query = harness.open_string.partition("?")
        there = before.partition("://")[2].rpartition("@")[2].partition("/")[0]
        host, _, port = there.partition(":")
        self.server = LyingServer(protocol, (host, int(port)))
        self.harness = harness
        kept = [part for part in query.split("&") if part and not part.startswith("timeout=")]
        here = before.replace(there, f"127.0.0.1:{self.server.port}")
        harness.open_string = f"{here}?{'&'.join([settings, *kept])}"
        self.client = Client(harness, opened=False)

    def close(self) -> None:
        """The end."""
        self.server.close()
        with suppress(XaError):
            self.client.rm.close("", RMID)
        self.harness.close()

    def check(self, verb: str, lie: Lie, when: bytes = b"") -> None:
        """Comes as far as `verb`, and hears the lie then, or `when` the server is asked this."""
        client, key, xid = self.client, new_key(), new_xid()
        if verb != "open":
            key, xid = patiently(lambda: self._come_to(verb))
        self.server.lie_when(when, lie) if when else self.server.lie(lie)
        code = in_time(lambda: self._call(verb, client, xid))
        self.server.be_honest()
        assert code in VERBS[verb], code
        self._settle(verb, code, xid, key)

    def _come_to(self, verb: str) -> tuple[str, Xid]:
        """A branch that is ready for `verb`, with its key."""
        client, key, xid = self.client, new_key(), new_xid()
        client.open()
        if verb not in {"start", "recover"}:
            xid = client.ended(key)
        if verb in {"commit", "rollback of what is prepared"}:
            assert client.prepare(xid) is Code.XA_OK
        return key, xid

    @staticmethod
    def _call(verb: str, client: Client, xid: Xid) -> Code:
        rm: Any = client.rm
        calls: dict[str, Callable[[], Any]] = {
            "open": client.open,
            "start": lambda: client.start(xid),
            "prepare": lambda: client.prepare(xid),
            "commit in one phase": lambda: client.commit(xid, TMONEPHASE),
            "commit": lambda: client.commit(xid),
            "rollback": lambda: client.rollback(xid),
            "rollback of what is prepared": lambda: client.rollback(xid),
            "recover": client.in_doubt,
            "decide": lambda: rm.decide(xid, RMID, RECORD),
        }

        try:
            answer = calls[verb]()
        except XaError as error:
            return error.code
        return answer if isinstance(answer, Code) else Code.XA_OK

    def _settle(self, verb: str, code: Code, xid: Xid, key: str) -> None:
        """Afterwards, as a manager does: with a true server it comes to the end that was wanted."""
        client, rm = self.client, cast("Any", self.client.rm)
        if verb in {"commit", "prepare", "rollback", "rollback of what is prepared"}:
            patiently(client.reopen)
            wanted = "commit" if verb == "commit" else "rollback"
            until = time.monotonic() + PATIENCE_S

            while (ended := client.retrying(wanted, xid)) in LOST and time.monotonic() < until:
                pass
            assert ended in {Code.XA_OK, Code.XAER_NOTA} | ROLLBACK_CODES, ended
            assert (key in self.harness.committed()) is (verb == "commit")
        elif verb == "commit in one phase" and code in ROLLBACK_CODES:
            assert key not in self.harness.committed()
        elif verb == "decide":
            patiently(client.reopen)
            found = patiently(lambda: rm.settle(xid.gtrid, RMID))
            assert found in {None, RECORD}
            assert (key in self.harness.committed()) is (found == RECORD)
            assert found is None or code is Code.XAER_RMFAIL


def verbs_of(
    make: Callable[[str], Any],
    protocol: Protocol,
    settings: str,
    verbs: Iterable[str],
    lies: Iterable[Lie] = tuple(Lie),
    when: bytes = b"",
    threads: int = 12,
) -> None:
    """Every verb before every lie; `make` makes the harness of a case."""

    def case(verb: str, lie: Lie) -> tuple[str, Callable[[], None]]:
        name = f"{verb}, {lie.value}"
        behind = Behind(make(name), protocol, settings)

        def run() -> None:
            try:
                behind.check(verb, lie, when)
            finally:
                behind.close()

        return name, run

    all_at_once([case(verb, lie) for verb in verbs for lie in lies], threads)


AMQP_SETTINGS = "timeout=0.5&connect_timeout=0.5"
SQL_SETTINGS = "connect_timeout=2&xa_reply_s=0.5"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    broker = EmbeddedBroker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


def named(name: str) -> str:
    """A case's name as part of a queue's."""
    return name.replace(" ", "-").replace(",", "")


@pytest.mark.slow
def test_verbs_of_amqp(embedded: EmbeddedBroker) -> None:
    def make(name: str) -> AmqpHarness:
        return AmqpHarness(embedded, VARIANTS["static"], named(name))

    verbs_of(make, Protocol.AMQP_10, AMQP_SETTINGS, TWO_PHASES)


@pytest.mark.slow  # replies that are lost: tests/rm_amqp/decider
def test_verbs_of_amqp_that_decides(embedded: EmbeddedBroker) -> None:
    verbs_of(lambda name: DecidingBrokerHarness(embedded, named(name)), Protocol.AMQP_10, AMQP_SETTINGS, ONE_PHASE)


@pytest.mark.slow
def test_verbs_of_amqp_010(broker_j: BrokerJ) -> None:
    settings = f"{AMQP_SETTINGS}&heartbeat=2"
    verbs_of(lambda name: QpidHarness(broker_j, named(name), goes_down=False), Protocol.AMQP_010, settings, TWO_PHASES)


@pytest.mark.slow
@pytest.mark.xdist_group("openwire")
@pytest.mark.parametrize("kind", ["classic", pytest.param("artemis", marks=pytest.mark.long)])
def test_verbs_of_openwire(kind: str, tmp_path: Path) -> None:
    broker = BROKERS[kind](tmp_path)
    broker.start()
    try:
        for lie in Lie:
            threads = 1 if lie is Lie.ENDLESS else 12  # a frame of 100 MB is allowed
            verbs_of(
                lambda _: OpenWireHarness(broker),
                Protocol.OPENWIRE,
                AMQP_SETTINGS,
                TWO_PHASES,
                [lie],
                threads=threads,
            )
    finally:
        broker.kill()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_verbs_of_databases(kind: str, request: pytest.FixtureRequest) -> None:
    server, protocol, (harness, _), urls = database(kind, request)
    for lie in Lie:
        threads = 1 if lie is Lie.ENDLESS else 12  # libpq keeps what comes until the wait is over
        verbs_of(lambda _: harness(server, urls[0]), protocol, SQL_SETTINGS, TWO_PHASES, [lie], threads=threads)


@pytest.mark.slow
@pytest.mark.parametrize("when", [b"", b"COMMIT"])
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_verbs_of_databases_that_decide(kind: str, when: bytes, request: pytest.FixtureRequest) -> None:
    server, protocol, (_, harness), urls = database(kind, request)
    verbs = ("commit in one phase", "decide") if when else ONE_PHASE
    verbs_of(lambda _: harness(server, urls[1]), protocol, SQL_SETTINGS, verbs, when=when)


def database(kind: str, request: pytest.FixtureRequest) -> tuple[Any, Protocol, tuple[Any, Any], tuple[str, str]]:
    """The server, its protocol, and harness and URL of a database for two phases, and of one that decides."""
    server = request.getfixturevalue(kind)
    if kind == "postgres":
        url = server.create_database()
        return server, Protocol.POSTGRES, (PostgresHarness, PostgresDeciderHarness), (url, url)
    urls = server.create_database("mariadb"), server.create_database("mysql+pymysql")
    return server, Protocol.MARIADB, (MariaHarness, MariaDeciderHarness), urls


# --- what is no verb --------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_statement_of_the_application_ends_with_its_transaction(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    _, protocol, _, urls = database(kind, request)

    def case(lie: Lie, true: str, decides: bool) -> Callable[[], None]:
        url = make_url(true)

        def run() -> None:
            with LyingServer(protocol, (str(url.host), int(url.port or 0))) as server:
                here = true.replace(f"{url.host}:{url.port}", f"127.0.0.1:{server.port}")
                keys = ["[resources.shop]", f'url = "{here}?{SQL_SETTINGS}"']
                first = f'log = "file://{tmp_path}/{lie.value}"'
                if decides:
                    keys, first = [*keys, 'mode = "decider"'], ""
                config = tmp_path / f"{lie.value}-{decides}.toml"
                config.write_text("\n".join([f'node = "n-{lie.value}"', first, *keys]))

                with closing(TransactionManager.from_config(config)) as manager:
                    with manager.begin() as tx:
                        tx["shop"].execute(sa.text("SELECT 1"))
                    with pytest.raises((sa.exc.DBAPIError, XaError)), manager.begin(timeout_s=1) as tx:
                        shop = tx["shop"]
                        server.lie(lie)
                        shop.execute(sa.text("SELECT 1"))
                    server.be_honest()

        return partial(in_time, run)

    both = tuple(zip(urls, (False, True), strict=True))
    lies = (Lie.SILENT, Lie.DRIP)
    all_at_once((f"{lie.value}, {decides=}", case(lie, true, decides)) for lie in lies for true, decides in both)


@pytest.mark.slow
def test_decisions_in_a_log_in_postgres(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt takes two seconds to find nobody; their number is looked at in `tm/log/test_sql_log_faults.py`."""
    monkeypatch.setattr("tm.log.sql.retry.PAUSES_S", PAUSES_S[:1])
    true = postgres.create_database()
    url = make_url(true)
    SqlLog(true, "first").close()

    def case(lie: Lie) -> Callable[[], None]:
        def run() -> None:
            with LyingServer(Protocol.POSTGRES, (str(url.host), int(url.port or 0))) as server:
                here = true.replace(f"{url.host}:{url.port}", f"127.0.0.1:{server.port}")
                database = Database(f"{here}?connect_timeout=2", reply_s=3)  # the true server may be busy
                database.prepare()
                log = SqlLog(database, lie.value, sleep=lambda _: None)
                server.lie(lie)
                with pytest.raises(LogStopped, match="unknown"):
                    log.decide(decision(1, node=lie.value))
                server.be_honest()
                with suppress(LogError):
                    log.close()
            with closing(SqlLog(true, lie.value, take_over=True)) as again:
                assert list(again.decisions()) == [decision(1, node=lie.value)]

        return partial(in_time, run)

    all_at_once((lie.value, case(lie)) for lie in Lie)


def test_health_of_a_server_that_drips(capsys: pytest.CaptureFixture[str]) -> None:
    with LyingServer(Protocol.HTTP) as server:
        server.lie(Lie.DRIP)
        begun = time.monotonic()
        assert main(["health", f"http://127.0.0.1:{server.port}/ready", "--timeout", "0.2"]) == Exit.INCOMPLETE
        assert time.monotonic() - begun < BOUND_S
    assert "no whole answer within 0.2 s" in capsys.readouterr().err
