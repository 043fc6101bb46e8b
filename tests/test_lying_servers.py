"""These tests put every driver before servers that lie (`tests.lying_server`), in every phase: each wait ends, with an
error that the driver declares, in bounded memory, and no transaction is told an outcome that it does not have."""

from __future__ import annotations

import resource
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

from dtx.store.contract import StoreError
from dtx.store.sql.image import look_at_store
from rm_amqp import AmqpResource, DecidingBroker, qpid
from rm_db import DecidingDatabase, MariaResource, PostgresResource
from rm_openwire import OpenWireResource
from tests.lying_server import Lie, LyingServer, Protocol
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.test_contract import VARIANTS, AmqpHarness
from tests.rm_db.harness import MariaDeciderHarness, MariaHarness, PostgresDeciderHarness, PostgresHarness
from tm.log.decision import LogError
from tm.log.sql import SqlLog
from xa import ROLLBACK_CODES, TMNOFLAGS, TMONEPHASE, Code, XaError
from xabridge.outbox.publisher import BrokerAway
from xabridge.outbox.rabbitmq import RabbitPublisher
from xabridge.testing.contract.client import RMID, Client, ScriptedRegistrar, new_key, new_xid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.postgres import Postgres
    from xabridge.testing.mariadb import MariaDB

BOUND_S = 20.0
"""No call takes longer, whatever its server says: a few times the settings below, on a machine that is busy."""
MEMORY = 300 << 20
"""Octets by which the process may grow while servers send it a gigabyte each."""

Open = Any


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


def relay_opens(port: int) -> None:
    with pytest.raises(BrokerAway):
        RabbitPublisher(f"amqp091://127.0.0.1:{port}", connect_s=1).open()


def store_is_looked_at(port: int) -> None:
    with pytest.raises(StoreError):
        look_at_store(f"postgresql://u:secret@127.0.0.1:{port}/d?connect_timeout=2")


AMQP = "amqp://127.0.0.1:{port}/?timeout=1&connect_timeout=1"
POSTGRES = "postgresql://u:secret@127.0.0.1:{port}/d?connect_timeout=2&xa_reply_s=1"
MARIADB = "mariadb://u:secret@127.0.0.1:{port}/d?connect_timeout=1&xa_reply_s=1"

STRANGERS: dict[str, tuple[Protocol, Callable[[int], None]]] = {
    "AMQP 1.0": (Protocol.AMQP_10, rm_opens(AmqpResource, AMQP)),
    "AMQP 1.0 with TLS": (Protocol.AMQP_10, rm_opens(AmqpResource, AMQP.replace("amqp:", "amqps:"))),
    "AMQP 1.0 that decides": (Protocol.AMQP_10, rm_opens(DecidingBroker, f"decider+{AMQP}")),
    "AMQP 0-10": (Protocol.AMQP_010, rm_opens(qpid, AMQP.replace("amqp:", "amqp010:"))),
    "AMQP 0-10 with TLS": (Protocol.AMQP_010, rm_opens(qpid, AMQP.replace("amqp:", "amqp010s:"))),
    "OpenWire": (Protocol.OPENWIRE, rm_opens(OpenWireResource, AMQP.replace("amqp:", "openwire:"))),
    "OpenWire with TLS": (Protocol.OPENWIRE, rm_opens(OpenWireResource, AMQP.replace("amqp:", "openwire+ssl:"))),
    "PostgreSQL": (Protocol.POSTGRES, rm_opens(PostgresResource, POSTGRES)),
    "PostgreSQL with TLS": (Protocol.POSTGRES, rm_opens(PostgresResource, f"{POSTGRES}&sslmode=require")),
    "PostgreSQL that decides": (Protocol.POSTGRES, rm_opens(DecidingDatabase, POSTGRES)),
    "MariaDB": (Protocol.MARIADB, rm_opens(MariaResource, MARIADB)),
    "MariaDB that decides": (Protocol.MARIADB, rm_opens(DecidingDatabase, f"mysql+pymysql{MARIADB[7:]}")),
    "a relay to RabbitMQ": (Protocol.AMQP_091, relay_opens),
    "a log in PostgreSQL": (Protocol.POSTGRES, log_opens),
    "a broker's store in PostgreSQL": (Protocol.POSTGRES, store_is_looked_at),
    "doctor: AMQP 1.0": (Protocol.AMQP_10, diagnoses(AmqpResource, AMQP)),
    "doctor: AMQP 0-10": (Protocol.AMQP_010, diagnoses(qpid, AMQP.replace("amqp:", "amqp010:"))),
    "doctor: OpenWire": (Protocol.OPENWIRE, diagnoses(OpenWireResource, AMQP.replace("amqp:", "openwire:"))),
    "doctor: PostgreSQL": (Protocol.POSTGRES, diagnoses(PostgresResource, POSTGRES)),
    "doctor: MariaDB": (Protocol.MARIADB, diagnoses(MariaResource, MARIADB)),
    "doctor: MariaDB that decides": (Protocol.MARIADB, diagnoses(DecidingDatabase, f"mysql+pymysql{MARIADB[7:]}")),
}


def all_at_once(cases: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """Runs the cases in threads; each within its time, and all of them within the memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def run(one: tuple[str, Callable[[], None]]) -> str | None:
        name, case = one
        begun = time.monotonic()
        try:
            case()
        except BaseException as error:  # noqa: BLE001 — all cases are reported
            return f"{name}: {type(error).__name__}: {error}"
        lasted = time.monotonic() - begun
        return f"{name}: took {lasted:.1f} s" if lasted > BOUND_S else None

    with ThreadPoolExecutor(12) as threads:
        wrong = [why for why in threads.map(run, cases) if why is not None]
    assert not wrong, "\n".join(wrong)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MEMORY, f"grew by {grown >> 20} MB"


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_answers_there_lies_from_the_beginning(kind: str) -> None:
    protocol, opens = STRANGERS[kind]

    def case(lie: Lie) -> Callable[[], None]:
        def run() -> None:
            with LyingServer(protocol) as server:
                server.lie(lie)
                opens(server.port)

        return run

    all_at_once((lie.value, case(lie)) for lie in Lie)


# --- verbs ------------------------------------------------------------------------------------------------------------
LOST = frozenset({Code.XAER_RMFAIL, Code.XA_RETRY})
VERBS: dict[str, frozenset[Code]] = {
    "open": LOST | {Code.XAER_RMERR},
    "start": LOST | {Code.XA_OK, Code.XAER_RMERR},
    "prepare": LOST | ROLLBACK_CODES,
    "commit in one phase": frozenset({Code.XAER_RMFAIL}),
    "commit": LOST,
    "rollback": LOST | ROLLBACK_CODES | {Code.XA_OK},
    "rollback of what is prepared": LOST,
    "recover": LOST | {Code.XAER_RMERR},
}
"""A verb → what it may say when its reply is a lie. The server has carried it out."""


class Behind:
    """A client of a harness's resource, behind a server that lies when a test wants it."""

    def __init__(self, harness: Any, protocol: Protocol, settings: str) -> None:
        url = make_url(harness.open_string)
        self.server = LyingServer(protocol, (url.host or "127.0.0.1", url.port or 0))
        self.harness = harness
        before, _, query = harness.open_string.partition("?")
        there = f"{url.host}:{url.port}"
        assert there in before
        query = "&".join(part for part in query.split("&") if part and not part.startswith("timeout="))
        harness.open_string = f"{before.replace(there, f'127.0.0.1:{self.server.port}')}?{settings}&{query}".rstrip("&")
        self.client = Client(harness, opened=False)

    def close(self) -> None:
        """The end."""
        self.server.close()
        with suppress(XaError):
            self.client.rm.close("", RMID)

    def check(self, verb: str, lie: Lie, after: int = 0) -> None:
        """Comes as far as `verb`, and hears the lie then."""
        client, key, xid = self.client, new_key(), new_xid()
        if verb != "open":
            client.open()
        if verb not in {"open", "start", "recover"}:
            xid = client.ended(key)
        if verb in {"commit", "rollback of what is prepared"}:
            assert client.prepare(xid) is Code.XA_OK

        self.server.lie(lie, after)
        said = self._said(verb, client, xid, key)
        self.server.be_honest()
        if said is not None:
            assert said in VERBS[verb], said
        if verb in {"commit", "prepare", "rollback", "rollback of what is prepared"}:
            self._settle(verb, xid, key)

    def _said(self, verb: str, client: Client, xid: Any, key: str) -> Code | None:
        calls: dict[str, Callable[[], Any]] = {
            "open": client.open,
            "start": lambda: (client.start(xid), client.write(key)),
            "prepare": lambda: client.prepare(xid),
            "commit in one phase": lambda: client.commit(xid, TMONEPHASE),
            "commit": lambda: client.commit(xid),
            "rollback": lambda: client.rollback(xid),
            "rollback of what is prepared": lambda: client.rollback(xid),
            "recover": client.in_doubt,
        }
        try:
            answer = calls[verb]()
        except XaError as error:
            return error.code
        if verb in {"start", "open"} and self.server.asked == b"":
            return None  # nothing was asked yet
        assert isinstance(answer, Code), f"{verb} answered {answer!r} to a lie"
        return answer

    def _settle(self, verb: str, xid: Any, key: str) -> None:
        """Afterwards, as a manager does: with a true server it comes to the end that was wanted."""
        self.client.reopen()
        wanted = "commit" if verb == "commit" else "rollback"
        ended = self.client.retrying(wanted, xid)
        until = time.monotonic() + BOUND_S
        while ended in LOST and time.monotonic() < until:
            ended = self.client.retrying(wanted, xid)
        assert ended in {Code.XA_OK, Code.XAER_NOTA} | ROLLBACK_CODES, ended
        assert (key in self.harness.committed()) is (verb == "commit")


def verbs_of(make: Callable[[], Any], protocol: Protocol, settings: str, verbs: Iterable[str] = VERBS) -> None:
    """Every verb before every lie."""

    def case(verb: str, lie: Lie) -> Callable[[], None]:
        def run() -> None:
            harness = make()
            behind = Behind(harness, protocol, settings)
            try:
                behind.check(verb, lie)
            finally:
                behind.close()
                harness.close()

        return run

    all_at_once((f"{verb}, {lie.value}", case(verb, lie)) for verb in verbs for lie in Lie)


AMQP_SETTINGS = "timeout=1.5&connect_timeout=1.5"


@pytest.mark.parametrize("lie", Lie)
def test_verbs_of_amqp(tmp_path: Path, lie: Lie) -> None:
    broker = EmbeddedBroker(tmp_path)
    try:

        def case(verb: str, number: int) -> Callable[[], None]:
            def run() -> None:
                harness = AmqpHarness(broker, VARIANTS["static"], f"{lie.value}-{number}")
                behind = Behind(harness, Protocol.AMQP_10, AMQP_SETTINGS)
                try:
                    behind.check(verb, lie)
                finally:
                    behind.close()
                    harness.close()

            return run

        all_at_once((verb, case(verb, number)) for number, verb in enumerate(VERBS))
    finally:
        broker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("decides", [False, True])
def test_verbs_of_postgres(postgres: Postgres, decides: bool) -> None:
    url = postgres.create_database()
    kind = PostgresDeciderHarness if decides else PostgresHarness
    verbs = [verb for verb in VERBS if not decides or verb in {"open", "start", "rollback", "commit in one phase"}]
    verbs_of(lambda: kind(postgres, url), Protocol.POSTGRES, "connect_timeout=2&xa_reply_s=1.5", verbs)


@pytest.mark.slow
@pytest.mark.parametrize("decides", [False, True])
def test_verbs_of_mariadb(mariadb: MariaDB, decides: bool) -> None:
    url = mariadb.create_database("mysql+pymysql" if decides else "mariadb")
    kind = MariaDeciderHarness if decides else MariaHarness
    verbs = [verb for verb in VERBS if not decides or verb in {"open", "start", "rollback", "commit in one phase"}]
    verbs_of(lambda: kind(mariadb, url), Protocol.MARIADB, "connect_timeout=2&xa_reply_s=1.5", verbs)
