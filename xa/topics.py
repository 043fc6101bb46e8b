"""The addresses of topics and subscriptions, as applications and the embedded broker write them.

`topic:prices.eur` is a topic, to which messages are sent. `topic:prices.*::billing` is the subscription `billing` to
the topics that the pattern fits, from which messages are received.
"""

from __future__ import annotations

from typing import Final

TOPIC: Final = "topic:"
"""The beginning of the address of a topic, of a pattern of topics, and of a subscription."""
SCHEME: Final = "topic://"
"""The same, as JMS clients write it."""
SUBSCRIPTION: Final = "::"
"""Between the address of a topic, or a pattern of topics, and the name of a subscription."""
PRIVATE: Final = "$"
"""The beginning of the name of a subscription that belongs to links."""


def is_topic(address: str) -> bool:
    """Whether an address names a topic, or a pattern of topics."""
    return address.startswith(TOPIC) and SUBSCRIPTION not in address.removeprefix(TOPIC)


def topic_of(source: str) -> str | None:
    """The topic, or the pattern of topics, of a subscription; None: the address is that of no subscription."""
    if not source.startswith(TOPIC) or is_topic(source):
        return None
    return TOPIC + source.removeprefix(TOPIC).partition(SUBSCRIPTION)[0]


def source_of(address: str, subscription: str | None) -> str:
    """The address from which the messages of a queue come, or those of a topic for `subscription`. ValueError: a topic
    needs one, and a queue has none; the message says so."""
    if not is_topic(address):
        if subscription is not None:
            raise ValueError(
                f"{address} is no topic, and has no subscription: a topic is written {TOPIC}NAME, and nothing behind it"
            )
        return address

    if subscription is None:
        raise ValueError(
            f'{address} is a topic, from which messages come by a subscription: name one, subscription="billing"'
        )
    wrong = not subscription.isprintable() or SUBSCRIPTION in subscription or "/" in subscription
    if wrong or not subscription or subscription.startswith(PRIVATE):
        raise ValueError(
            f"{subscription!r} is no name of a subscription, which has printable characters, no / and no "
            f"{SUBSCRIPTION}, and does not begin with {PRIVATE}"
        )
    name = address.removeprefix(SCHEME if address.startswith(SCHEME) else TOPIC)
    return f"{TOPIC}{name}{SUBSCRIPTION}{subscription}"
