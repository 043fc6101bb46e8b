"""These tests cover opening: each mistake has a clear message of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dtx.broker.access.credentials import set_password
from dtx.broker.access.permissions import EVERYTHING, Permissions
from dtx.broker.settings import Limits, Settings
from rm_amqp import AmqpResource, Message
from tests.rm_amqp.client import RMID, Client
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.foreign import foreign_broker, silent_peer
from xa import TMSTARTRSCAN, Code, ResourceError, XaError, XaMisuse
from xa.configuration import Section
from xabridge.testing.contract.client import ScriptedRegistrar
from xabridge.testing.ports import free_port

Connect = Callable[..., Client]

CERTIFICATES = Path(__file__).parents[1] / "interop" / "certificates"
OPEN_SESAME = "open sesame"


def open_error(open_string: str) -> XaError:
    """Why it can't be opened."""
    rm = AmqpResource(ScriptedRegistrar())
    try:
        with pytest.raises(XaError) as raised:
            rm.open(open_string, RMID)
        return raised.value
    finally:
        rm.drop()


def opens(open_string: str) -> None:
    """It can be opened, and used."""
    rm = AmqpResource(ScriptedRegistrar())
    try:
        assert rm.open(open_string, RMID) is Code.XA_OK
        rm.recover(RMID, TMSTARTRSCAN)
    finally:
        rm.drop()


# --- where ---------------------------------------------------------------------------------------------------


def test_of_several_brokers_the_first_that_can_be_reached_is_taken(broker: EmbeddedBroker) -> None:
    with silent_peer() as silent:
        opens(f"amqp://127.0.0.1:{free_port()},{silent},{broker.address}/?timeout=20&connect_timeout=0.2")


def test_a_broker_that_says_nothing() -> None:
    """No call hangs longer than its timeout."""
    with silent_peer() as silent:
        began = time.monotonic()
        error = open_error(f"amqp://{silent},{silent}/?timeout=0.1")
        assert error.code is Code.XAER_RMFAIL
        assert "the broker did not answer in time" in str(error)
        assert time.monotonic() - began < 20  # of no more than 0.1 s, where the machine has time


# --- who -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that knows its users."""
    folder = tmp_path_factory.mktemp("guarded")
    set_password(folder / "users", "shop", OPEN_SESAME, iterations=4096)
    rules = Permissions.from_section(
        Section({"shop": {"produce": ["orders"], "create": ["orders"], "coordinate": "own"}})
    )
    broker = EmbeddedBroker(folder, users=folder / "users", permissions=rules)
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that speaks TLS, and takes certificates."""
    broker = EmbeddedBroker(
        tmp_path_factory.mktemp("encrypted"),
        tls=True,
        certificate=CERTIFICATES / "broker.pem",
        key=CERTIFICATES / "broker.key",
        client_ca=CERTIFICATES / "ca.pem",
        anonymous=True,
        permissions=Permissions({"anonymous": EVERYTHING, "*": EVERYTHING}),
    )
    yield broker
    broker.stop()


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("amqp://no-such-host.invalid/?timeout=20", Code.XAER_RMFAIL, ":5672 can't be reached: no such host"),
        ("amqp://{nobody}", Code.XAER_RMFAIL, "the broker at {nobody} can't be reached: connection refused"),
        ("amqp://127.0.0.1:1,{nobody}", Code.XAER_RMFAIL, "127.0.0.1:1 can't be reached: connection refused"),
        ("amqp://127.0.0.1:1,{nobody}", Code.XAER_RMFAIL, "{nobody} can't be reached: connection refused"),
        ("amqp://shop:guess@{guarded}", Code.XAER_RMERR, "the credentials were refused"),
        ("amqp://{guarded}", Code.XAER_RMERR, "the server offers SCRAM-SHA-256; give a user and password"),
        ("amqps://{encrypted}", Code.XAER_RMERR, "TLS: CERTIFICATE_VERIFY_FAILED: self-signed certificate"),
        ("amqps://{guarded}", Code.XAER_RMERR, "TLS: no TLS is spoken at this port: name the port for TLS"),
        ("amqps://127.0.0.1/?ca=/nowhere/ca.pem", Code.XAER_INVAL, "ca, cert or key can't be used"),
    ],
)
def test_ways_that_lead_nowhere(
    guarded: EmbeddedBroker, encrypted: EmbeddedBroker, url: str, code: Code, told: str
) -> None:
    nobody, tls = f"127.0.0.1:{free_port()}", f"localhost:{encrypted.port}"
    url, told = (text.format(nobody=nobody, guarded=guarded.address, encrypted=tls) for text in (url, told))
    error = open_error(url)
    assert error.code is code
    assert told in str(error)
    assert "guess" not in str(error)


def test_what_the_user_may_do(guarded: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", OPEN_SESAME)
    opens(f"amqp://shop@{guarded.address}/?password_env=BROKER_PASSWORD")
    client = Client(f"shop:open%20sesame@{guarded.address}")
    with client.work(two_phase=True) as session:
        session.send("orders", Message("x"))
        with pytest.raises(ResourceError, match="amqp:unauthorized-access"):
            session.receive("orders", 1)
        with pytest.raises(ResourceError, match="amqp:unauthorized-access"):
            session.send("invoices", Message("x"))
    client.rm.close("", RMID)


@pytest.mark.parametrize("own", ["", f"&cert={CERTIFICATES}/client.pem&key={CERTIFICATES}/client.key"])
def test_tls(encrypted: EmbeddedBroker, own: str) -> None:
    """A certificate of our own says who we are."""
    client = Client(f"localhost:{encrypted.port}", f"ca={CERTIFICATES}/ca.pem{own}", tls=True)
    client.put("orders", ["x" * 100_000, "two"])
    assert [client.take("orders").body for _ in range(2)] == ["x" * 100_000, "two"]
    if own:
        assert encrypted.inside(lambda broker: {one.identity.name for one in broker.peers}) == {"orders-svc"}
    client.rm.close("", RMID)


def test_a_broker_without_tls(broker: EmbeddedBroker) -> None:
    error = open_error(f"amqps://{broker.address}/?timeout=5")
    assert error.code in {Code.XAER_RMERR, Code.XAER_RMFAIL}
    assert re.search("TLS|closed the connection", str(error))


# --- what ----------------------------------------------------------------------------------------------------
def test_a_broker_without_distributed_transactions() -> None:
    """It says what the broker offers, and which binding would work.

    Note that a peer MUST take responsibility for verifying that the remote terminus meets its requirements."""
    with foreign_broker(["amqp:local-transactions", "amqp:multi-txns-per-ssn"]) as address:
        error = open_error(f"amqp://{address}")
    assert error.code is Code.XAER_RMERR
    assert "the broker foreign" in str(error)
    assert "has no amqp:distributed-transactions" in str(error)
    assert "it offers amqp:local-transactions, amqp:multi-txns-per-ssn" in str(error)
    assert 'mode = "decider"' in str(error)


NONE = "offers no transactions (amqp:not-implemented: no transactions here)"


@pytest.mark.parametrize(
    ("offers", "ends_session", "told"),
    [([], False, "it offers nothing that it names"), (None, False, NONE), ([], True, NONE)],
)
def test_a_broker_without_transactions(offers: list[str] | None, ends_session: bool, told: str) -> None:
    with foreign_broker(offers, ends_session=ends_session) as address:
        error = open_error(f"amqp://{address}")
    assert error.code is Code.XAER_RMERR
    assert told in str(error)


# --- work ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that makes no queues, and takes small messages only."""
    settings = Settings(
        create_on_demand=False, queues={"orders": Settings().queue_defaults}, limits=Limits(message_octets=2000)
    )
    broker = EmbeddedBroker(tmp_path_factory.mktemp("narrow"), settings=settings)
    yield broker
    broker.stop()


@pytest.mark.parametrize(("octets", "reason", "place"), [(1400, 100, 100), (1800, 0, 0)])
def test_what_is_noted_of_a_dead_letter_is_cut_to_fit(
    narrow: EmbeddedBroker, octets: int, reason: int, place: int
) -> None:
    """The message counts, and goes away with what fits beside it."""
    client = Client(narrow.address)
    with client.work() as session:
        session.send("orders", Message("x" * octets))
    error, where = "ValueError: " + "y" * 2000, "/srv/" + "z" * 500 + ".py:17 in f"
    with client.work() as session:
        message = session.receive("orders", 5)
        session.dead_letter(message, "orders", {"reason": error, "place": where, "deliveries": 5})
    letter = client.take("orders")
    annotations = {str(name): value for name, value in (letter.annotations or {}).items()}
    assert letter.body == "x" * octets
    assert annotations["x-opt-dead-reason"] == error[:reason]
    assert annotations["x-opt-dead-place"] == where[len(where) - place :]
    assert annotations["x-opt-dead-deliveries"] == 5
    client.rm.close("", RMID)


def test_what_the_broker_does_not_take(narrow: EmbeddedBroker) -> None:
    """The transaction goes on."""
    client = Client(narrow.address)
    with client.work() as session:
        for use in (
            lambda: session.send("ordres", Message("x")),
            lambda: session.receive("ordres", 1),
            lambda: list(session.browse("ordres")),
        ):
            with pytest.raises(XaMisuse, match="ordres") as raised:
                use()
            assert raised.value.code is Code.XAER_INVAL
            assert "amqp:not-found" in str(raised.value)

        with pytest.raises(XaMisuse, match="the broker takes at most 2000 for orders") as raised:
            session.send("orders", Message("x" * 3000))
        assert raised.value.code is Code.XAER_INVAL
        session.send("orders", Message("right"))
    assert client.look("orders") == ["right"]
    client.rm.close("", RMID)


@pytest.mark.parametrize(("options", "at_once"), [("ahead=true&channels=1", True), ("channels=1", False)])
def test_whether_a_start_would_wait(broker: EmbeddedBroker, options: str, at_once: bool) -> None:
    """It would not, where nobody waits for the broker's answer and a channel is idle; one that joins is not meant."""
    client = Client(broker.address, options)
    rm = client.rm
    assert rm.starts_at_once(RMID) is at_once
    assert not rm.starts_at_once(RMID + 1)
    xid = client.start()
    assert not rm.starts_at_once(RMID)
    client.rollback(xid)
    assert rm.starts_at_once(RMID) is at_once
    broker.cut(rm.container)
    assert not rm.starts_at_once(RMID)  # another channel would have to be made
    rm.close("", RMID)
    assert not rm.starts_at_once(RMID)
