"""Topics: a message that is posted to one goes to every subscription that stands when it is committed, once."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Data, Delivery, Link, Message, Receiver, Terminus, symbol

from dtx.broker.access.permissions import EVERYTHING, Permissions, Rule
from dtx.broker.queues.subscription import Subscription
from dtx.broker.queues.topics import fits, topic_address
from dtx.broker.settings import QueueSettings, Settings, TopicSettings, Unrouted, WhenSubscriptionFull
from dtx.protocol.addresses import MANAGEMENT
from dtx.protocol.commands import Commit, Prepare, Rollback, Start
from dtx.protocol.conditions import RefusedError
from dtx.store.contract import CHUNK, StoreError, StoreFull
from tests.dtx.broker.peer import OK, XID, Coordinator, Peer, World, manage, post, refused_with
from tests.dtx.broker.strangers import Stranger, connected, selecting, source

TOPIC = "topic:prices"
BILLING = "topic:prices::billing"
AUDIT = "topic:prices::audit"


def subscribe(peer: Peer, *addresses: str) -> list[Receiver]:
    """Consumers of these subscriptions, without credit."""
    return [peer.receiver(address) for address in addresses]


def durable(peer: Peer, name: str, *capabilities: str, topic: str = TOPIC) -> Receiver:
    """A durable subscription as the mapping of JMS has it."""
    link = peer.session.receiver(name)
    link.source.address = topic
    link.source.durability = Terminus.DELIVERIES
    link.source.expiry_policy = Terminus.EXPIRE_NEVER
    capable(link, *capabilities)
    link.open()
    peer.world.pump()
    return link


def capable(link: Any, *capabilities: str, target: bool = False) -> None:
    """Gives a terminus capabilities."""
    put = (link.target if target else link.source).capabilities
    put.put_array(False, Data.SYMBOL)
    put.enter()
    for capability in capabilities:
        put.put_symbol(symbol(capability))
    put.exit()


def condition(link: Link) -> str:
    """The condition with which a link was refused."""
    assert link.remote_condition is not None
    return str(link.remote_condition.name)


def why(link: Link) -> str:
    """Why it was."""
    assert link.remote_condition is not None
    return str(link.remote_condition.description)


def got(world: World, address: str) -> list[Any]:
    """What is in a subscription."""
    return world.connect().drained(address)


# --- names
@pytest.mark.parametrize(
    ("pattern", "name", "does"),
    [
        ("prices", "prices", True),
        ("prices", "prices.eur", False),
        ("prices.*", "prices.eur", True),
        ("prices.*", "prices", False),
        ("prices.*", "prices.eur.usd", False),
        ("prices.#", "prices", True),
        ("prices.#", "prices.eur.usd", True),
        ("#", "prices", True),
        ("#.usd", "prices.eur.usd", True),
        ("#.usd", "usd", True),
        ("#.usd", "prices.usd.eur", False),
        ("*.*.usd", "a.b.usd", True),
        ("a.#.b.#.c", "a.b.b.x.c", True),
        ("a.#.b.#.c", "a.x.c", False),
        ("#.#", "a", True),
        ("*.#.*", "a", False),
        ("pr*", "prices", False),
    ],
)
def test_wildcards_stand_for_words(pattern: str, name: str, *, does: bool) -> None:
    assert fits(pattern.split("."), name.split(".")) is does


def test_a_long_pattern_takes_no_longer_than_it_and_the_name_are_long() -> None:
    assert not fits(["#", "a"] * 60 + ["b"], ["a"] * 120)


def test_the_addresses_of_topics() -> None:
    assert topic_address("topic:prices") == topic_address("topic://prices") == "topic:prices"
    assert topic_address("prices") is None
    assert topic_address("topic:prices::billing") is None
    assert topic_address("events.eur", ["events.#"]) == "topic:events.eur"


# --- who gets what
def test_every_subscription_gets_a_message_once_and_a_queue_of_that_name_none(world: World, peer: Peer) -> None:
    links = subscribe(peer, BILLING, AUDIT)
    peer.fill("prices", "to the queue")
    peer.fill(TOPIC, "one")
    peer.fill("topic://prices", "two")
    for link in links:
        world.more(link, 10)
        assert peer.bodies(link) == ["one", "two"]
    assert not world.disk.shares
    assert len(world.disk.pieces) == len(world.disk.messages) == 1, "what is left is the message of the queue"


def test_patterns_get_what_fits(peer: Peer, world: World) -> None:
    subscribe(peer, "topic:prices.*::one", "topic:prices.#::all", "topic:#::everything")
    for name in ("prices", "prices.eur", "prices.eur.usd", "other"):
        peer.fill(f"topic:{name}", name)
    subscribe(peer, "topic:prices.#::late")
    peer.fill("topic:prices.eur", "again")
    assert got(world, "topic:prices.*::one") == ["prices.eur", "again"]
    assert got(world, "topic:prices.#::all") == ["prices", "prices.eur", "prices.eur.usd", "again"]
    assert got(world, "topic:#::everything") == ["prices", "prices.eur", "prices.eur.usd", "other", "again"]
    assert got(world, "topic:prices.#::late") == ["again"]


def test_the_set_is_taken_at_commit(world: World, peer: Peer, control: Coordinator) -> None:
    """Of a local transaction: who subscribes after the post and before the commit gets the message."""
    subscribe(peer, BILLING)
    txn_id = control.declare()
    peer.post(peer.sender(TOPIC), "x", txn_id)
    subscribe(peer, AUDIT)
    assert got(world, BILLING) == got(world, AUDIT) == []
    control.discharge(txn_id)
    subscribe(peer, "topic:prices::late")
    assert got(world, BILLING) == got(world, AUDIT) == ["x"]
    assert got(world, "topic:prices::late") == []


def test_a_rolled_back_transaction_publishes_nothing(world: World, peer: Peer, control: Coordinator) -> None:
    subscribe(peer, BILLING)
    txn_id = control.declare()
    peer.post(peer.sender(TOPIC), "x", txn_id)
    control.discharge(txn_id, fail=True)
    assert got(world, BILLING) == []
    peer.prepared(posts=TOPIC)
    assert peer.ask(Rollback(XID)) == OK
    assert got(world, BILLING) == []
    assert not world.disk.messages
    assert not world.disk.pieces
    assert world.store.promised == 0
    assert world.queue(BILLING).counters.pending == 0


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("size", [3, CHUNK + 5])
def test_a_prepared_branch_publishes_to_those_that_stand_at_its_commit(*, crashes: bool, size: int) -> None:
    world = World()
    peer = world.connect()
    subscribe(peer, BILLING, "topic:prices::leaves")
    body = "x" * size
    peer.prepared(posts=TOPIC, body=body)
    subscribe(peer, AUDIT)
    world.container.resource.topics.unsubscribe(world.queue("topic:prices::leaves"))
    world.pump()
    if crashes:
        world = world.crash()
        peer = world.connect()
    subscribe(peer, "topic:prices.#::late")
    assert world.store.promised > 0
    assert peer.ask(Commit(XID)) == OK
    assert world.store.promised == 0
    if crashes:
        world = world.crash()
    for name in (BILLING, AUDIT, "topic:prices.#::late"):
        assert got(world, name) == [body]
    assert len(world.disk.pieces) == 1, "the payload is stored once"
    assert len(world.disk.messages) == 3

    for name in (BILLING, AUDIT, "topic:prices.#::late"):
        link = world.connect().receiver(name, 1)
        assert world.peers[-1].bodies(link) == [body]
    assert not world.disk.messages
    assert not world.disk.pieces
    assert not world.disk.shares


def test_a_late_subscription_takes_what_was_voted_for_beyond_its_limits() -> None:
    world = World(Settings(queues={AUDIT: QueueSettings(max_depth=1)}))
    peer = world.connect()
    peer.prepared(posts=TOPIC, bodies=("one", "two", "three"))
    subscribe(peer, AUDIT)
    assert peer.ask(Commit(XID)) == OK
    assert got(world, AUDIT) == ["one", "two", "three"]


def test_what_is_posted_keeps_room_in_its_subscriptions() -> None:
    """So that a commit is never refused for the lack of it; one that is full refuses the post, and the others get
    nothing either."""
    world = World(Settings(queues={AUDIT: QueueSettings(max_depth=1)}))
    peer = world.connect()
    subscribe(peer, AUDIT, BILLING)
    peer.prepared(posts=TOPIC, body="one")
    refused = peer.post(peer.sender(TOPIC), "two")
    assert refused.remote_state == Delivery.REJECTED
    assert refused_with(refused).condition == "amqp:resource-limit-exceeded"
    assert peer.ask(Commit(XID)) == OK
    assert got(world, AUDIT) == got(world, BILLING) == ["one"]


def test_a_full_subscription_may_be_left_out_and_that_is_counted() -> None:
    settings = Settings(
        queues={AUDIT: QueueSettings(max_depth=1)},
        topics={"prices": TopicSettings(when_subscription_full=WhenSubscriptionFull.DROP)},
    )
    world = World(settings)
    peer = world.connect()
    subscribe(peer, AUDIT, BILLING)
    peer.prepared(posts="prices", bodies=("one", "two"))
    assert peer.ask(Commit(XID)) == OK
    assert got(world, AUDIT) == ["one"]
    assert got(world, BILLING) == ["one", "two"]
    topic = world.container.resource.topics.get(TOPIC)
    assert topic is not None
    assert topic.dropped == 1


def test_a_topic_without_a_subscription_drops_or_refuses(world: World, peer: Peer) -> None:
    assert peer.post(peer.sender(TOPIC), "x").remote_state == Delivery.ACCEPTED
    peer.prepared(posts=TOPIC)
    assert peer.ask(Commit(XID)) == OK
    topic = world.container.resource.topics.get(TOPIC)
    assert topic is not None
    assert topic.unrouted == 2
    assert not world.disk.messages
    assert not world.disk.pieces

    strict = World(Settings(topics={"prices": TopicSettings(unrouted=Unrouted.REJECT)}))
    peer = strict.connect()
    assert peer.post(peer.sender(TOPIC), "x").remote_state == Delivery.REJECTED
    subscribe(peer, BILLING)
    assert peer.post(peer.sender(TOPIC), "x").remote_state == Delivery.ACCEPTED


# --- what holds per subscription
def test_dead_letters_and_times_are_those_of_the_subscription() -> None:
    settings = Settings(queues={AUDIT: QueueSettings(ttl_ms=1000), BILLING: QueueSettings(max_deliveries=1)})
    world = World(settings)
    peer = world.connect()
    subscribe(peer, AUDIT, BILLING)
    peer.fill(TOPIC, "x")
    link, delivery, _ = peer.first(BILLING)
    peer.fail(link)
    assert got(world, BILLING) == []

    assert got(world, f"{BILLING}.dead") == ["x"]
    assert got(world, AUDIT) == ["x"]
    world.pass_time(2)
    assert got(world, AUDIT) == []
    assert got(world, f"{AUDIT}.dead") == ["x"]
    assert len(world.disk.pieces) == 1, "both dead letters share it"
    again = world.crash()
    assert got(again, f"{BILLING}.dead") == got(again, f"{AUDIT}.dead") == ["x"]
    assert delivery is not None


def test_a_delay_begins_at_the_commit_and_groups_are_of_a_subscription(world: World, peer: Peer) -> None:
    subscribe(peer, AUDIT, BILLING)
    post(peer, "later", queue=TOPIC, delay=5000, group_id="g")
    assert [world.queue(name).available for name in (AUDIT, BILLING)] == [0, 0]
    world = world.crash()
    world.pass_time(6)
    assert [world.queue(name).available for name in (AUDIT, BILLING)] == [1, 1]
    assert got(world, AUDIT) == got(world, BILLING) == ["later"]


# --- selectors
def selected(world: World, name: str, text: str, container: str = "") -> Stranger:
    """A durable subscription to the topic with a selector; its connection."""
    stranger = connected(world, container=container or name)
    stranger.attach(0, source=source(f"{TOPIC}::{name}", filters=selecting(text)), receiver=True)
    return stranger


@pytest.mark.parametrize("crashes", [False, True])
def test_a_selector_says_what_a_subscription_gets(*, crashes: bool) -> None:
    """Of messages outside of transactions; and of those of a prepared branch, which was prepared before one of the
    subscriptions was made, so that the messages have to be read again."""
    world = World()
    peer = world.connect()
    selected(world, "red", "colour = 'red'")
    subscribe(peer, AUDIT)
    control, sender = peer.coordinator(), peer.sender(TOPIC)
    txn_id = control.declare(Start(XID))
    for number, colour in enumerate(("red", "blue")):
        octets = Message(body=colour, properties={"colour": colour}).encode()
        peer.send_octets(sender, bytes(octets), f"in{number}", txn_id)
        peer.send_octets(sender, bytes(octets), f"out{number}")

    world.pump()
    control.discharge(txn_id)
    assert got(world, f"{TOPIC}::red") == ["red"]
    assert peer.ask(Prepare(XID)) == OK
    selected(world, "blue", "colour = 'blue'")
    if crashes:
        world = World(disk=world.disk, cached_size=0)
        peer = world.connect()
    assert peer.ask(Commit(XID)) == OK
    assert got(world, f"{TOPIC}::red") == ["red", "red"]
    assert got(world, f"{TOPIC}::blue") == ["blue"]
    assert got(world, AUDIT) == ["red", "blue", "red", "blue"]


def test_two_selectors_for_one_name_are_refused(world: World) -> None:
    for container in ("one", "two"):
        selected(world, "red", "colour = 'red'", container)
    assert world.queue(f"{TOPIC}::red").attached == 2
    selected(world, "red", "colour = 'blue'", "three")
    assert world.queue(f"{TOPIC}::red").attached == 2
    with pytest.raises(RefusedError) as refused:
        world.container.resource.subscribe(f"{TOPIC}::red", Subscription(TOPIC))
    assert "has the selector" in refused.value.refusal.description


# --- the mapping of JMS
def test_a_durable_subscription_stays_when_its_link_is_detached_and_goes_when_it_is_closed(world: World) -> None:
    peer = world.connect()
    link = durable(peer, "billing", "topic", topic="prices")
    name = f"{TOPIC}::{peer.connection.container}/billing"
    assert link.remote_source.durability == Terminus.DELIVERIES
    assert link.remote_source.expiry_policy == Terminus.EXPIRE_NEVER
    link.detach()
    world.pump()
    peer.fill(TOPIC, "while it is away")
    world = world.crash()
    again = world.connect()
    again.connection.container = peer.connection.container
    other = world.connect()
    other.fill(TOPIC, "more")
    assert got(world, name) == ["while it is away", "more"]

    queue = world.queue(name)
    assert queue.subscription is not None
    assert queue.subscription.durable
    assert not queue.subscription.shared


def test_a_close_deletes_a_durable_subscription_and_is_answered_when_that_is_stored(world: World, peer: Peer) -> None:
    link = durable(peer, "billing")
    name = f"{TOPIC}::{peer.connection.container}/billing"
    peer.fill(TOPIC, "x")
    link.close()
    world.pump(store=False)
    assert not link.state & link.REMOTE_CLOSED
    world.pump()
    assert link.state & link.REMOTE_CLOSED
    assert name not in world.container.resource.queues
    assert not world.disk.messages
    assert not world.disk.pieces


def test_the_end_of_a_connection_ends_what_does_not_last_and_nothing_else(world: World) -> None:
    peer = world.connect()
    durable(peer, "billing")
    peer.receiver(TOPIC)
    topic = world.container.resource.find_topic(TOPIC)
    peer.fill(TOPIC, "x")
    assert len(topic.subscriptions) == 2  # type: ignore[attr-defined]
    peer.vanish()
    assert [queue.name for queue in topic.subscriptions] == [f"{TOPIC}::{peer.connection.container}/billing"]  # type: ignore[attr-defined]
    assert len(world.disk.messages) == 1


def test_what_does_not_last_is_gone_after_a_crash(world: World, peer: Peer) -> None:
    peer.receiver(TOPIC)
    subscribe(peer, BILLING)
    peer.fill(TOPIC, "x")
    assert len(world.disk.messages) == 2
    again = world.crash()
    assert [queue.subscription is not None for queue in again.container.resource.queues.values()] == [True]
    assert len(again.disk.messages) == 1
    assert got(again, BILLING) == ["x"]


def test_shared_subscriptions_of_a_container_of_all_and_that_do_not_last(world: World) -> None:
    one, two = world.connect(), world.connect()
    first = durable(one, "billing|global", "topic", "shared", "global")
    second = durable(two, "billing|global2", "topic", "shared", "global")
    named = one.receiver(BILLING)
    queue = world.queue(BILLING)
    assert queue.attached == 3
    one.fill(TOPIC, *range(6))
    for link in (first, second, named):
        link.flow(2)
        world.pump()
    shares = [one.bodies(first), two.bodies(second), one.bodies(named)]
    assert sorted(body for share in shares for body in share) == list(range(6))
    assert all(len(share) == 2 for share in shares)
    world.close(first)
    assert not queue.deleted, "others have it"

    volatile = [peer.session.receiver(f"audit|volatile{number}") for number, peer in enumerate((one, one))]
    for link in volatile:
        link.source.address = TOPIC
        capable(link, "topic", "shared")
        link.open()
        world.pump()
    one.fill(TOPIC, "once")
    for link in volatile:
        world.more(link, 1)
    assert sorted(one.bodies(volatile[0]) + one.bodies(volatile[1])) == ["once"]
    (name,) = [name for name in world.container.resource.queues if "::$" in name]
    world.close(volatile[0])
    assert name in world.container.resource.queues
    world.close(volatile[1])
    assert name not in world.container.resource.queues


def unsubscriber(peer: Peer, name: str) -> Receiver:
    """A link without a source, as Qpid JMS attaches it to unsubscribe."""
    link = peer.session.receiver(name)
    link.source.type = Terminus.UNSPECIFIED
    link.open()
    peer.world.pump()
    return link


def test_a_link_without_a_source_finds_a_durable_subscription_to_delete_it(world: World, peer: Peer) -> None:
    link = durable(peer, "billing", "topic")
    used = unsubscriber(world.connect(), "billing")
    assert condition(used) == "amqp:not-found", "it is another container's"
    link.detach()
    world.pump()
    found = unsubscriber(peer, "billing")
    assert found.remote_source.address == TOPIC
    world.close(found)
    assert not world.container.resource.queues
    assert condition(unsubscriber(peer, "billing")) == "amqp:not-found"


def test_a_subscription_with_consumers_is_not_deleted_by_name(world: World, peer: Peer) -> None:
    durable(peer, "billing|global", "shared", "global")
    other = unsubscriber(world.connect(), "billing|global")
    assert condition(other) == "amqp:resource-locked"


# --- deletion
def test_a_deletion_waits_for_a_prepared_branch_that_has_taken_messages(world: World, peer: Peer) -> None:
    link = durable(peer, "billing")
    name = f"{TOPIC}::{peer.connection.container}/billing"
    peer.fill(TOPIC, "taken", "left")
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    world.more(link, 1)
    delivery, _ = peer.taken(link)
    peer.retire(delivery, txn_id)
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == OK

    link.close()
    world.pump()
    assert not link.state & link.REMOTE_CLOSED
    world.pass_time(5)
    assert not link.state & link.REMOTE_CLOSED
    peer.fill(TOPIC, "it stands until then")
    assert world.queue(name).depth == 3
    assert peer.ask(Rollback(XID)) == OK
    world.pass_time(1)
    assert link.state & link.REMOTE_CLOSED
    assert not world.disk.messages
    assert not world.disk.pieces


def test_a_deletion_waits_for_no_posts_and_no_open_transaction(world: World, peer: Peer, control: Coordinator) -> None:
    link = durable(peer, "billing")
    peer.fill(TOPIC, "taken")
    txn_id = control.declare()
    world.more(link, 1)
    delivery, _ = peer.taken(link)
    peer.retire(delivery, txn_id)
    peer.prepared(posts=TOPIC)
    world.close(link)
    assert link.state & link.REMOTE_CLOSED
    control.discharge(txn_id)
    subscribe(peer, AUDIT)
    assert peer.ask(Commit(XID)) == OK
    assert got(world, AUDIT) == ["x"]
    assert len(world.disk.messages) == 1


def test_a_deletion_that_the_store_does_not_take_is_tried_again(world: World, peer: Peer) -> None:
    link = durable(peer, "billing|global", "shared", "global")
    peer.fill(TOPIC, "x")
    world.fault = StoreFull("full")
    world.close(link)
    assert not link.state & link.REMOTE_CLOSED
    refused = peer.receiver(BILLING)
    assert "being deleted" in why(refused)
    world.fault = None
    world.pass_time(1)
    assert link.state & link.REMOTE_CLOSED
    assert not world.disk.messages


def test_an_operator_deletes_a_subscription_and_a_commit_meanwhile_leaves_nothing_behind(
    world: World, peer: Peer
) -> None:
    subscribe(peer, BILLING, AUDIT)
    peer.fill(TOPIC, "one")
    peer.prepared(posts=TOPIC, body="two")
    assert "purge it first" in manage(peer, operation="delete-queue", queue=BILLING).description
    operator = world.connect()
    replies, requests = operator.receiver(None, 10), operator.sender(MANAGEMENT)
    asked = {"operation": "delete-queue", "queue": BILLING, "force": True}
    request = Message(id="1", reply_to=str(replies.remote_source.address), properties=asked)
    operator.send_octets(requests, bytes(request.encode()), "t", settled=True)

    peer.request(Commit(XID))
    world.pump(store=False)
    world.pump()
    assert peer.answer() == OK
    assert BILLING not in world.container.resource.queues
    world = world.crash()
    assert got(world, AUDIT) == ["one", "two"]
    assert len(world.disk.messages) == 2


def test_an_operator_does_not_delete_what_a_prepared_branch_has_taken(world: World, peer: Peer) -> None:
    subscribe(peer, BILLING)
    peer.fill(TOPIC, "taken")
    peer.prepared(takes=BILLING)
    refused = manage(peer, operation="delete-queue", queue=BILLING, force=True)
    assert "prepared branches have taken" in refused.description
    assert peer.ask(Rollback(XID)) == OK
    assert got(world, BILLING) == ["taken"]
    assert manage(peer, operation="delete-queue", queue=BILLING, force=True) == {}
    assert not world.disk.messages
    assert not world.disk.pieces


# --- attaching
def test_a_subscriber_is_answered_when_its_subscription_is_stored(world: World) -> None:
    peer = world.connect()
    link = peer.session.receiver("in")
    link.source.address = BILLING
    link.open()
    link.flow(10)
    world.pump(store=False)
    assert not link.state & link.REMOTE_ACTIVE
    world.pump()
    assert link.state & link.REMOTE_ACTIVE
    peer.fill(TOPIC, "x")
    assert peer.bodies(link) == ["x"], "its credit came before the answer"


def test_a_subscriber_may_leave_before_it_is_answered(world: World) -> None:
    peer = world.connect()
    for close in (True, False):
        link = peer.session.receiver(f"in{close}")
        link.source.address = BILLING + str(close)
        link.open()
        world.pump(store=False)
        if close:
            link.close()
        else:
            link.detach()
        world.pump(store=False)
        world.pump()
    peer.fill(TOPIC, "x")
    assert got(world, BILLING + "True") == ["x"]


def test_a_subscription_that_can_not_be_stored_is_refused_and_gone(world: World) -> None:
    peer = world.connect()
    world.fault = StoreFull("full")
    link = peer.receiver(BILLING)
    assert "full" in why(link)
    world.fault = None
    world.pass_time(2)
    assert BILLING not in world.container.resource.queues
    assert not [queue for queue in world.disk.queues.values() if queue.name == BILLING]
    assert peer.receiver(BILLING).state & Receiver.REMOTE_ACTIVE


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("topic:prices::", "has a name"),
        ("topic:prices::$x", "does not begin"),
        ("topic:::x", "words with dots"),
        ("topic:a..b::x", "words with dots"),
    ],
)
def test_wrong_names_of_subscriptions_are_refused(world: World, peer: Peer, address: str, message: str) -> None:
    link = peer.receiver(address)
    assert message in why(link)
    assert not world.container.resource.queues


def test_nothing_is_sent_to_a_pattern_and_what_is_sent_to_a_subscription_is_its_own(world: World, peer: Peer) -> None:
    """As a message that is to be tried again, and a dead letter."""
    assert "wildcards" in why(peer.sender("topic:prices.*"))
    subscribe(peer, BILLING, AUDIT)
    assert peer.post(peer.sender(BILLING), "again").remote_state == Delivery.ACCEPTED
    assert (got(world, BILLING), got(world, AUDIT)) == (["again"], [])
    assert "no subscription" in why(peer.sender("topic:prices::other"))
    sender = peer.sender(f"{BILLING}.dead")
    assert peer.post(sender, "a consumer's dead letter").remote_state == Delivery.ACCEPTED
    assert got(world, f"{BILLING}.dead") == ["a consumer's dead letter"]


def test_a_topic_is_no_queue_to_anybody(world: World, peer: Peer) -> None:
    subscribe(peer, BILLING)
    assert "is a topic" in why(peer.receiver(f"$depth/{TOPIC}"))
    for name in (TOPIC, "topic:prices::new"):
        assert "a topic" in manage(peer, operation="create-queue", queue=name).description
    assert [queue.name for queue in world.container.resource.queues.values() if queue.lasting] == [BILLING]


def test_durable_and_shared_are_of_topics_only(peer: Peer) -> None:
    link = durable(peer, "x", topic="orders")
    assert "of topics" in why(link)


# --- permissions
def test_who_may_publish_and_subscribe() -> None:
    rules = {
        "shop": Rule(produce=("topic:prices",), create=("topic:prices",)),
        "desk": Rule(consume=("topic:prices*",)),
    }
    world = World(permissions=Permissions({**rules, "anonymous": EVERYTHING}))
    shop, desk = world.connect("shop"), world.connect("desk")
    assert condition(shop.receiver(BILLING)) == "amqp:unauthorized-access"
    assert condition(shop.receiver(TOPIC)) == "amqp:unauthorized-access"

    assert condition(desk.sender(TOPIC)) == "amqp:unauthorized-access"
    assert "may not make it" in why(desk.receiver(BILLING))
    assert "may not make it" in why(durable(desk, "x"))
    subscribe(world.connect(), BILLING)
    for address in (BILLING, TOPIC):
        assert desk.receiver(address).state & Receiver.REMOTE_ACTIVE
    shop.fill(TOPIC, "x")
    assert got(world, BILLING) == ["x"]
    assert condition(desk.receiver("topic:#")) == "amqp:unauthorized-access"


def test_a_pattern_needs_the_right_to_all_that_it_fits() -> None:
    world = World(permissions=Permissions({"desk": Rule(consume=("topic:prices.*",))}))
    desk = world.connect("desk")
    assert desk.receiver("topic:prices.*").state & Receiver.REMOTE_ACTIVE
    assert condition(desk.receiver("topic:prices.#")) == "amqp:unauthorized-access", "it fits topic:prices"


# --- the configuration
def test_a_queue_with_messages_does_not_become_a_topic() -> None:
    world = World()
    peer = world.connect()
    peer.fill("events.a", "x")
    peer.sender("events.b")
    world.pump()
    settings = Settings(topics={"events.#": TopicSettings()})

    with pytest.raises(StoreError, match=r"the queue 'events.a' has 1 messages"):
        World(settings, disk=world.disk)
    link = peer.receiver("events.a", 1)
    assert peer.bodies(link) == ["x"]
    again = World(settings, disk=world.disk)
    assert not again.container.resource.queues
    peer = again.connect()
    subscribe(peer, "topic:events.a::x")
    peer.fill("events.a", "to the topic")
    assert got(again, "topic:events.a::x") == ["to the topic"]


def test_a_capability_makes_no_topic_of_a_queue_with_messages(world: World, peer: Peer) -> None:
    peer.fill("prices", "x")
    link = peer.session.sender("out")
    link.target.address = "prices"
    capable(link, "topic", target=True)
    link.open()
    world.pump()
    assert "is a queue" in why(link)
