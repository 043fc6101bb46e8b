"""These tests hold the client against the rules of the simulated Service Bus: what they allow works, and what they
don't is refused with a message that names the rule, before anything is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rm_amqp import DecidingBroker, Message, NoMessage
from rm_amqp.decider.tokens import Token
from tests.rm_amqp.client import RMID, new_xid
from tests.rm_amqp.service_bus.namespace import LOCK_S, MAX_MESSAGES, TRANSACTION_S
from tests.rm_amqp.service_bus.peer import IDLE_S
from tests.rm_amqp.service_bus.server import KEY, KEY_NAME, TOPIC, ServiceBusNetwork, ServiceBusServer, tokens
from xa import TMFAIL, TMSUCCESS, BranchRolledBack, Code, ResourceError, ResourceUnavailable, XaMisuse, Xid
from xa.diagnosis import Health

URL = "decider+amqp://here/?timeout=20&slots=1"
REAL = "decider+amqps://key:secret@orders.servicebus.windows.net/"


class Shop:
    """A topic with the subscriptions x and y, a queue beside it, tokens, and a client."""

    def __init__(self) -> None:
        self.network = ServiceBusNetwork()
        self.namespace = self.network.namespace
        tokens(self.namespace, "xabridge.tokens", 1)
        for name in ("x", "y"):
            self.namespace.subscription(TOPIC, name)
        self.namespace.queue("invoices")
        self.rm = self.network.decider()

    def opened(self) -> Shop:
        """The client is open."""
        self.rm.open(f"{URL}&topic={TOPIC}", RMID)
        return self

    def bodies(self, path: str) -> list[object]:
        """What is in an entity, locked or not."""
        entity = self.namespace.entities.get(path) or self.namespace.entity(f"{TOPIC}/Subscriptions/{path}")
        return [Message.from_octets(stored.octets).body for stored in entity.messages]

    def start(self) -> Xid:
        """A transaction begins."""
        self.rm.start(xid := new_xid(), RMID)
        return xid

    def commit(self, xid: Xid) -> Code:
        """It ends, and is decided."""
        self.rm.end(xid, RMID, TMSUCCESS)
        return self.rm.decide(xid, RMID, b"record")

    def work(self, call: Callable[[Any], Any]) -> Any:
        """Work in a transaction of its own."""
        xid = self.start()
        result = call(self.rm.session(RMID))
        assert self.commit(xid) is Code.XA_OK
        return result


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def server() -> Iterator[ServiceBusServer]:
    server = ServiceBusServer()
    yield server
    server.stop()


# --- what works -------------------------------------------------------------------------------------------------
def test_messages_of_several_subscriptions_and_a_transfer_in_one_transaction(shop: Shop) -> None:
    shop.opened().work(lambda session: [session.send(name, Message(f"to {name}")) for name in ("x", "y")])

    def move(session: Any) -> None:
        assert session.receive("x", 5).body == "to x"
        assert session.receive("y", 5).body == "to y"
        session.send("queue://invoices", Message("invoice"))
        session.send("x", Message("again"))

    shop.work(move)
    assert (shop.bodies("x"), shop.bodies("y"), shop.bodies("invoices")) == (["again"], [], ["invoice"])


def test_a_subscription_is_browsed_by_its_management_node_page_by_page(shop: Shop) -> None:
    many = [f"message {number}" for number in range(10)]
    shop.opened().work(lambda session: session.send_batch("x", [Message(body) for body in many]))
    xid = shop.start()
    session = shop.rm.session(RMID)
    assert session.receive("x", 5).body == many[0]
    assert [message.body for message in session.browse("x")] == many, "locked ones as well"
    shop.rm.end(xid, RMID, TMSUCCESS)
    shop.rm.rollback(xid, RMID)


def test_other_outcomes_are_carried_out_with_the_transaction(shop: Shop) -> None:
    shop.opened().work(lambda session: session.send_batch("x", [Message(body) for body in ("back", "dead")]))

    def settle(session: Any) -> None:
        message = session.receive("x", 5)
        with pytest.raises(XaMisuse, match="would defer the message"):
            session.modify(message, undeliverable=True)
        session.modify(message)
        session.reject(session.receive("x", 5))

    shop.work(settle)
    entity = shop.namespace.entity(f"{TOPIC}/Subscriptions/x")
    assert (shop.bodies("x"), entity.deferred) == (["back"], [])
    assert [Message.from_octets(stored.octets).body for stored in entity.dead] == ["dead"]


def test_over_sockets_with_a_shared_access_key(server: ServiceBusServer) -> None:
    server.tokens("xabridge.tokens", 8)
    server.subscriptions("x")
    rm = DecidingBroker()
    rm.open(server.open_string(), RMID)
    assert {check.health for check in rm.diagnose(server.open_string()).checks} <= {Health.OK, Health.WARN}
    rm.start(xid := new_xid(), RMID)
    rm.session(RMID).send("x", Message("M"))
    with pytest.raises(NoMessage):
        rm.session(RMID).receive("x", 0)
    rm.end(xid, RMID, TMSUCCESS)
    assert rm.decide(xid, RMID, b"record") is Code.XA_OK
    rm.close("", RMID)


def test_a_rollback_gives_messages_back_at_once(shop: Shop) -> None:
    shop.opened().work(lambda session: session.send("x", Message("M")))
    xid = shop.start()
    assert shop.rm.session(RMID).receive("x", 5).body == "M"
    shop.rm.end(xid, RMID, TMFAIL)
    with pytest.raises(BranchRolledBack):
        shop.rm.decide(xid, RMID, b"record")
    message = shop.work(lambda session: session.receive("x", 5))
    assert (message.body, message.delivery_count) == ("M", 1)


# --- the rules of transactions ----------------------------------------------------------------------------------
def test_only_the_topic_can_be_received_from(shop: Shop) -> None:
    xid = shop.opened().start()
    with pytest.raises(XaMisuse, match="one top-level entity, which is the topic shop here"):
        shop.rm.session(RMID).receive("queue://invoices", 0)
    shop.rm.session(RMID).send("x", Message("the transaction goes on"))
    assert shop.commit(xid) is Code.XA_OK


def test_a_transaction_that_takes_two_minutes_is_rolled_back(shop: Shop) -> None:
    xid = shop.opened().start()
    shop.network.sleep(2 * TRANSACTION_S)  # its time begins with its first operation
    shop.rm.session(RMID).send("x", Message("M"))
    shop.network.sleep(TRANSACTION_S - 10)
    assert shop.commit(xid) is Code.XA_OK
    xid = shop.start()
    shop.rm.session(RMID).send("x", Message("too late"))
    shop.network.sleep(TRANSACTION_S + 10)
    shop.rm.end(xid, RMID, TMSUCCESS)
    with pytest.raises(BranchRolledBack):
        shop.rm.decide(xid, RMID, b"record")
    assert shop.bodies("x") == ["M"]
    shop.network.sleep(LOCK_S + 1)
    assert shop.rm.settle(xid.gtrid, RMID) is None


def test_a_transaction_sends_so_many_messages_and_no_more(shop: Shop) -> None:
    """The token is one of them."""
    shop.opened().work(lambda session: session.send_batch("x", [Message(b"")] * (MAX_MESSAGES - 1)))
    xid = shop.start()
    shop.rm.session(RMID).send_batch("x", [Message(b"")] * MAX_MESSAGES)
    shop.rm.end(xid, RMID, TMSUCCESS)
    with pytest.raises(BranchRolledBack, match="more than 100 messages"):
        shop.rm.decide(xid, RMID, b"record")
    xid = shop.start()
    shop.rm.session(RMID).send_batch("x", [Message(b"")] * (MAX_MESSAGES + 1))
    with pytest.raises(BranchRolledBack, match="more than 100 messages"):
        shop.rm.end(xid, RMID, TMSUCCESS)
    assert len(shop.bodies("x")) == MAX_MESSAGES - 1


def test_a_message_whose_lock_has_run_out_rolls_its_transaction_back(shop: Shop) -> None:
    shop.opened().work(lambda session: session.send("x", Message("M")))
    xid = shop.start()
    assert shop.rm.session(RMID).receive("x", 5).body == "M"
    shop.rm.session(RMID).send("y", Message("copy"))
    shop.network.sleep(LOCK_S + 1)
    with pytest.raises(BranchRolledBack, match="lock"):
        shop.rm.end(xid, RMID, TMSUCCESS)
    assert (shop.bodies("x"), shop.bodies("y")) == (["M"], [])


def test_a_token_whose_lock_has_run_out_decides_nothing(shop: Shop) -> None:
    """Another process has it meanwhile, and fences the transaction."""
    shop.opened()
    xid = shop.start()
    shop.rm.session(RMID).send("x", Message("M"))
    shop.rm.end(xid, RMID, TMSUCCESS)
    other = shop.network.decider()
    other.open(f"{URL}&topic={TOPIC}", RMID)
    pooled = shop.rm.driver._branch("", xid).pooled
    tokens = pooled.channel.tokens
    founding = shop.rm.driver._decisions.founding

    now = shop.network.now
    held = pooled.connection.run(tokens.acquire(founding, 0, now + 5, now + 10))
    shop.network.sleep(LOCK_S + 1)
    assert other.settle(xid.gtrid, RMID) is None
    work = shop.rm.driver._branch("", xid).work
    token = held.token.deciding(xid.gtrid, b"record", frozenset())
    with pytest.raises(Exception, match="lock"):
        pooled.connection.run(tokens.replace(work, [held], token, now + 100))
    (body,) = shop.bodies("xabridge.tokens.0")
    assert Token.decode(body).decided == ()
    assert [gtrid for gtrid, _ in Token.decode(body).fenced] == [xid.gtrid]


def test_links_that_nobody_uses_are_detached_and_nobody_notices(shop: Shop) -> None:
    shop.opened().work(lambda session: session.send("x", Message("M")))
    for _ in range(3):
        shop.network.sleep(IDLE_S + 60)

        def again(session: Any) -> None:
            session.send("x", session.receive("x", 5))

        shop.work(again)
    assert shop.bodies("x") == ["M"]


def test_a_transaction_whose_links_were_detached_is_rolled_back(shop: Shop) -> None:
    """With its control link it ends."""
    shop.opened()
    xid = shop.start()
    shop.rm.session(RMID).send("x", Message("M"))
    shop.network.sleep(IDLE_S + 60)
    with pytest.raises((BranchRolledBack, ResourceUnavailable)):
        shop.commit(xid)
    assert shop.bodies("x") == []


# --- the rules of subscriptions ---------------------------------------------------------------------------------
RULES: dict[str, tuple[str | None, ...]] = {
    "the rule that it has by default": (None,),
    "somebody else's": ("orders",),
    "one too many": ("late", None),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_subscription_that_would_not_get_just_its_messages_is_refused(
    shop: Shop, rules: tuple[str | None, ...]
) -> None:
    """A topic drops what nobody wants, without a word."""
    shop.opened()
    shop.namespace.subscription(TOPIC, "late", *rules)
    xid = shop.start()
    with pytest.raises(XaMisuse, match=r"has to have one rule, the correlation filter To = 'late'"):
        shop.rm.session(RMID).send("late", Message("M"))
    shop.rm.session(RMID).send("x", Message("the transaction goes on"))
    assert shop.commit(xid) is Code.XA_OK


def test_a_subscription_that_does_not_exist(shop: Shop) -> None:
    xid = shop.opened().start()
    session = shop.rm.session(RMID)
    calls = (
        lambda: session.send("z", Message("M")),
        lambda: session.receive("z", 0),
        lambda: list(session.browse("z")),
    )
    for call in calls:
        with pytest.raises(XaMisuse, match="shop/Subscriptions/z"):
            call()
    with pytest.raises(XaMisuse, match="at most 50"):
        session.send("z" * 51, Message("M"))
    with pytest.raises(XaMisuse, match="nowhere"):
        session.send("queue://nowhere", Message("M"))
    assert shop.commit(xid) is Code.XA_OK


def test_tokens_without_subscriptions(shop: Shop) -> None:
    for name, rules in (("xabridge.tokens.0", (None,)), ("xabridge.tokens", (None,))):
        shop.namespace.subscription(TOPIC, name, *rules)
        with pytest.raises(ResourceError, match=r"To = its own name"):
            shop.opened()
        assert shop.bodies("xabridge.tokens") == []
    del shop.namespace.entities[f"{TOPIC}/Subscriptions/xabridge.tokens"]
    with pytest.raises(ResourceError, match=r"xabridge.tokens and xabridge.tokens.0 to xabridge.tokens.1"):
        shop.opened()


# --- what is refused when it is opened --------------------------------------------------------------------------
UNFIT = {
    "no topic": (REAL, "topic=NAME"),
    "prefetch": (f"{REAL}?topic=shop&prefetch=5", "leave prefetch away"),
    "a name that is too long": (f"{REAL}?topic=shop&token_queue={'t' * 49}", "50 characters"),
}


@pytest.mark.parametrize(("url", "told"), UNFIT.values(), ids=UNFIT)
def test_an_open_string_that_does_not_fit_is_refused_before_it_connects(url: str, told: str) -> None:
    rm = DecidingBroker()
    with pytest.raises(XaMisuse, match=told):
        rm.open(url, RMID)
    (check,) = rm.diagnose(url).checks
    assert check.health is Health.FAIL
    assert told in check.found


def test_a_namespace_that_is_not_known_to_be_one(shop: Shop) -> None:
    """By its address nobody can see that it is Service Bus, and no topic is named: nothing of it seems to work."""
    for name in ("xabridge.tokens", "xabridge.tokens.0", "xabridge.tokens.1"):
        shop.namespace.queue(name)
    with pytest.raises(ResourceError, match=r"Browsing over a link is not supported"):
        shop.rm.open(URL, RMID)
    assert all(not entity.messages for entity in shop.namespace.entities.values())


def test_a_topic_with_partitions(shop: Shop) -> None:
    shop.namespace.partitioned.add(TOPIC)
    with pytest.raises(ResourceError, match="partition key"):
        shop.opened()
    assert shop.bodies("xabridge.tokens") == []


WITHOUT: dict[str, tuple[str, str, str]] = {
    "a key": ("", "standard", "claim"),
    "the right key": (f"{KEY_NAME}:guess@", "standard", "credentials"),
    "transactions": (f"{KEY_NAME}:{KEY}@", "basic", "basic tier"),
}


@pytest.mark.parametrize(("who", "tier", "told"), WITHOUT.values(), ids=WITHOUT)
def test_a_server_that_does_not_let_us_work(server: ServiceBusServer, who: str, tier: str, told: str) -> None:
    server.namespace.tier = tier
    url = f"decider+amqp://{who}{server.address}/?topic={TOPIC}&plain_without_tls=true"
    rm = DecidingBroker()
    with pytest.raises(ResourceError, match=told) as raised:
        rm.open(url, RMID)
    (check,) = rm.diagnose(url).checks
    for said in (str(raised.value), check.found):
        assert "guess" not in said
        assert KEY not in said
