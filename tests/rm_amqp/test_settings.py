"""These tests cover the open string."""

from __future__ import annotations

import pytest

from rm_amqp.settings import Broker, Settings, parse
from xa import Code, XaMisuse


def test_the_least_that_can_be_said() -> None:
    assert parse("amqp://broker") == Settings((Broker("broker", 5672),))
    assert parse("dynamic+amqps://broker/") == Settings((Broker("broker", 5671),), tls=True)


def test_everything_that_can_be_said() -> None:
    told = parse(
        "amqps://orders%40shop@One:5000,[::1]:7,two/?timeout=5&connect_timeout=2.5&idle_timeout=60&channels=9&prefetch=50"
        "&ahead=true&branch_timeout=120&ca=ca.pem&cert=me.pem&key=me.key&plain_without_tls=true&password_env=SECRET",
        {"SECRET": "open%20sesame"},
    )

    assert told == Settings(
        (Broker("one", 5000), Broker("::1", 7), Broker("two", 5671)),
        tls=True,
        user="orders@shop",
        password="open%20sesame",  # noqa: S106 — what an environment variable says is not encoded
        timeout_s=5,
        connect_timeout_s=2.5,
        idle_timeout_s=60,
        channels=9,
        prefetch=50,
        ahead=True,
        branch_timeout_s=120,
        ca="ca.pem",
        certificate="me.pem",
        key="me.key",
        plain_without_tls=True,
    )


def test_service_bus_may_be_silent_for_longer() -> None:
    assert parse("amqps://key@namespace/?topic=shop").idle_timeout_s == 120
    assert parse("amqps://key@namespace/?topic=shop&idle_timeout=40").idle_timeout_s == 40
    assert parse("amqps://key@namespace/").idle_timeout_s == 30


def test_the_password_is_not_shown() -> None:
    told = parse("amqp://shop:open%20sesame@broker")
    assert told.password == "open sesame"  # noqa: S105
    assert "sesame" not in repr(told) + told.identity


def test_the_identity_names_the_broker_whatever_the_order_of_its_nodes() -> None:
    assert parse("amqp://a,b:1").identity == parse("amqp://b:1,A:5672/?timeout=3").identity
    assert parse("amqp://shop@a").identity != parse("amqp://a").identity


@pytest.mark.parametrize(
    ("open_string", "told"),
    [
        ("broker", "not a URL: write scheme://…"),
        ("postgresql://broker", "'postgresql' is not a scheme"),
        ("amqp://", "expected host or host:port"),
        ("amqp://a,,b", "expected host or host:port"),
        ("amqp://a:0", "host 1: expected host or host:port"),
        ("amqp://b,a:65536", "expected host or host:port"),
        ("amqp://::1:5672", "expected host or host:port"),
        ("amqp://a/orders", "there is no path"),
        ("amqp://:secret@a", "a user is expected before the @"),
        ("amqp://a/?colour=red", "colour: there is no such option; there are ahead, branch_timeout"),
        ("amqp://a/?timeout=0", "timeout='0': expected seconds between 0 and 86400"),
        ("amqp://a/?timeout=nan", "expected seconds"),
        ("amqp://a/?timeout=soon", "expected seconds"),
        ("amqp://a/?channels=0", "channels='0': expected a number from 1 to 1000"),
        ("amqp://a/?prefetch=9999", "expected a number from 0 to 5000"),
        ("amqp://a/?ahead=yes", "ahead='yes': expected true or false"),
        ("amqp://a/?timeout", "options are name=value"),
        ("amqp://u@a/?password_env=NOT_SET", "password_env: the environment variable NOT_SET is not set; set it"),
        ("amqp://u:secret@a/?password_env=SET", "password_env goes with a user and without a password"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(open_string: str, told: str) -> None:
    with pytest.raises(XaMisuse) as raised:
        parse(open_string, {"SET": "secret"})
    assert raised.value.code is Code.XAER_INVAL
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)
