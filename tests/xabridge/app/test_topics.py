"""Applications with topics: what is published reaches each subscription's handler once, and wrong declarations say what
is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker
from tests.waiting import until
from tests.xabridge.app.shop import Invoice
from xabridge import App, Configuration, ConfigurationError, Tx
from xabridge.testing import Killed, TestApp

BROKER = Configuration("prices-1", None, {"broker": "amqp://nowhere.invalid"})


@dataclass
class Price:
    """What is published."""

    article: str
    cents: int


def an_app(configuration: Configuration = BROKER) -> tuple[App, list[str]]:
    """An App that forwards prices to a topic, which two of its consumers have subscribed to."""
    app, seen = App(configuration), list[str]()

    @app.consumer("prices")
    def publish(price: Price, tx: Tx) -> None:
        tx.send(f"topic:prices.{price.article}", price)
        if price.cents < 0:
            raise LookupError(price.cents)

    @app.consumer("topic:prices.*", subscription="billing")
    def bill(price: Price, tx: Tx) -> None:
        seen.append(f"billing {price.article}")
        tx.send("invoices", Invoice(price.cents))

    @app.consumer("topic:prices.tea", subscription="audit", max_deliveries=2)
    def audit(price: Price) -> None:
        seen.append(f"audit {price.article}")
        if price.cents == 13:
            raise LookupError(price.cents)

    return app, seen


def test_a_topic_delivers_to_the_handlers_of_its_subscriptions() -> None:
    app, seen = an_app()
    with TestApp(app) as test:
        test.deliver("topic:prices.tea", Price("tea", 7))
        assert seen == ["billing tea", "audit tea"]
        test.deliver("topic:prices.milk", Price("milk", 8))
        assert seen == ["billing tea", "audit tea", "billing milk"]
        test.assert_sent("invoices", Invoice(7), Invoice(8))


def test_what_an_app_publishes_is_seen_and_waits_for_each_subscription() -> None:
    app, seen = an_app()
    with TestApp(app) as test:
        test.deliver("prices", Price("tea", 7))
        test.assert_sent("topic:prices.tea", Price("tea", 7))
        assert test.waiting("topic:prices.*::billing") == test.waiting("topic:prices.tea::audit") == 1
        assert seen == []
        test.deliver("topic:prices.tea")
        assert seen == ["billing tea", "audit tea"]
        with pytest.raises(LookupError):
            test.deliver("prices", Price("tea", -1))
        test.assert_sent("topic:prices.tea", Price("tea", 7))


def test_a_failed_delivery_is_one_of_its_subscription_only() -> None:
    app, _ = an_app()
    with TestApp(app) as test:
        with pytest.raises(LookupError):
            test.deliver("topic:prices.tea", Price("tea", 13))
        assert test.waiting("topic:prices.*::billing") == 0
        with pytest.raises(LookupError):
            test.deliver("topic:prices.tea::audit")
        test.deliver("topic:prices.tea::audit")
        assert len(test.dead("topic:prices.tea::audit")) == 1
        assert "LookupError" in test.dead("topic:prices.tea::audit")[0]


@pytest.mark.parametrize("at", ["before the decision", "after the decision"])
def test_a_process_that_is_killed_publishes_once_or_not_at_all(at: str) -> None:
    app, _ = an_app()
    with TestApp(app) as test:
        test.kill(at)  # type: ignore[arg-type]
        with pytest.raises(Killed):
            test.deliver("prices", Price("tea", 7))
        test.deliver("prices")
        test.assert_sent("topic:prices.tea", Price("tea", 7))
        assert test.waiting("topic:prices.*::billing") == 1


def test_wrong_declarations_say_what_is_wrong() -> None:
    app = App(BROKER)
    for queue, options, why in (
        ("topic:prices", {}, "from which messages come by a subscription"),
        ("prices", {"subscription": "billing"}, "is no topic"),
        ("topic:prices", {"subscription": ""}, "subscription"),
        ("topic:prices", {"subscription": "a/b"}, "no name of a subscription"),
        ("topic:prices", {"subscription": 7}, "subscription"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            app.consumer(queue, **options)(lambda _: None)


def test_two_processes_of_an_application_share_a_subscription(tmp_path: Path) -> None:
    """Each message is handled once by each subscription, by one of the processes."""
    broker = EmbeddedBroker(tmp_path)
    counts = Counter[str]()

    def process(name: str) -> App:
        resources = {"broker": f"amqp://{broker.address}"}
        app = App(Configuration(name, f"file://{tmp_path / name}", resources))

        @app.consumer("topic:prices.*", subscription="billing", workers=2)
        def bill(price: Price) -> None:
            counts[price.article] += 1

        return app

    try:
        with process("one"), process("two") as two:
            queue = "topic:prices.*::billing"
            until(lambda: getattr(broker.broker.container.resource.queues.get(queue), "attached", 0) == 4)
            for number in range(40):
                with two.manager.begin() as tx:
                    tx["broker"].send("topic:prices.tea", two.codecs.message(Price(f"tea {number}", number)))
            until(lambda: len(counts) == 40)
        assert set(counts.values()) == {1}
    finally:
        broker.stop()
