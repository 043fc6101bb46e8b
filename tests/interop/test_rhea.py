"""These tests run rhea, the AMQP client for node, against the embedded broker: plain traffic, local and global
transactions, and how links are refused, attached again, windowed, drained and filtered.

The checks from the side of rhea's user are in rhea/client.js and rhea/links.js; these tests check the end of each
scenario. What test_qpid_jms.py has of links, in a process that is there already, is long here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from dtx.broker.access.credentials import set_password
from tests.interop import programs
from tests.interop.programs import NOT_ALLOWED
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.contract.client import case

pytestmark = [pytest.mark.slow]
OPEN_SESAME: Final = "open sesame"
CERTIFICATES: Final = Path(__file__).with_name("certificates")
TRAFFIC: Final[dict[str, Any]] = {
    "bodies": 6,
    "order": 1000,
    "outcomes": [],
    "browse": ["one", "two"],
    "commit": ["in the transaction"],
    "rollback": [],
    "refusals": ["amqp:transaction:unknown-id", "amqp:not-found"],
    "branch": ["new"],
}
LINKS: Final[dict[str, Any]] = {
    "drain": [0, 3, 7, 0],
    "exhausted": [4, 3],
    "crowd": 1100,
    "credit": [],
    "settled": {"modes": [1, 1], "bodies": list(range(10)), "settled": True, "left": []},
    "reattach": {"closed": [False, False], "bodies": [2, 3], "left": []},
    "full": ["amqp:resource-limit-exceeded", ["the first", "the last"]],
    "selector": {"green": 167, "left": 833, "wrong": "amqp:invalid-field"},
    "second": {"modes": [1, 1], "settledFirst": False, "twice": ["in three steps"] * 2, "left": []},
    "frames": 12,
}
LONG: Final[dict[str, Any]] = {
    "replies": {"answers": [["one", "to one"], ["two", "to two"]], "late": "amqp:not-found"},
    "large": 40 << 20,
    "excessive": [64 << 20, "amqp:link:message-size-exceeded", ["small"]],
    "anonymous": {"offered": True, "one": ["to anonymous.one"] * 2, "two": ["to anonymous.two"]},
}
OPTIONS: Final[dict[str, dict[str, Any]]] = {"full": {"links": 256}, "frames": {"max_frame_size": 512}}


def run(rhea: Path, port: int, scenario: str, program: str = "links.js", **options: Any) -> Any:
    """The result of a scenario."""
    return programs.run(["node", program], port, scenario, folder=rhea, **options)


@pytest.mark.parametrize("scenario", TRAFFIC)
def test_traffic(rhea: Path, broker: BrokerProcess, scenario: str) -> None:
    assert run(rhea, broker.port, scenario, "client.js") == TRAFFIC[scenario]


@pytest.mark.parametrize("scenario", [*LINKS, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_links(rhea: Path, broker: BrokerProcess, scenario: str) -> None:
    assert run(rhea, broker.port, scenario, **OPTIONS.get(scenario, {})) == {**LINKS, **LONG}[scenario]


def test_a_user_with_a_password_over_tls(rhea: Path, tmp_path: Path) -> None:
    set_password(tmp_path / "users", "shop", OPEN_SESAME, iterations=4096)
    config = tmp_path / "broker.toml"
    config.write_text(
        f'[broker]\nusers = "{tmp_path}/users"\nlisten_tls = ["127.0.0.1:0"]\n'
        f'certificate = "{CERTIFICATES}/broker.pem"\nkey = "{CERTIFICATES}/broker.key"\n'
        '[broker.permissions.shop]\nproduce = ["orders"]\ncreate = ["orders"]\n'
    )
    broker = BrokerProcess(tmp_path, "--config", str(config))
    broker.start()

    try:
        login = {"transport": "tls", "ca": f"{CERTIFICATES}/ca.pem", "username": "shop", "servername": "localhost"}
        login["password"] = OPEN_SESAME
        assert run(rhea, broker.port, "identity", "client.js", **login) == "amqp:unauthorized-access"
        with pytest.raises(AssertionError):
            run(rhea, broker.port, "identity", "client.js", **{**login, "password": "wrong"})
        assert "wrong name or password for 'shop'" in broker.errors()
        assert broker.stop() == 0
    finally:
        broker.kill()


@pytest.mark.parametrize("what", ["sessions", pytest.param("links", marks=pytest.mark.long)])
def test_opened_and_closed_many_times(rhea: Path, broker: BrokerProcess, what: str) -> None:
    for pairs in (70, 1100):
        ended, left = run(rhea, broker.port, what, pairs=pairs)
        assert ended == pairs
        assert set(left) == {"still useful"}


def test_a_sender_without_an_address_is_held_to_what_is_allowed(rhea: Path, restricted: BrokerProcess) -> None:
    told = run(rhea, restricted.port, "astray")
    assert "accepted" not in told["conditions"]
    assert told["conditions"][1:] == ["amqp:not-found", "amqp:unauthorized-access"]
    assert told["arrived"] == [4]


def test_nothing_is_promised_that_is_not_kept(rhea: Path, broker: BrokerProcess) -> None:
    assert run(rhea, broker.port, "filter")["filters"] == [], "what is echoed is promised"
    told = run(rhea, broker.port, "promises")
    assert told["condition"] == "amqp:not-implemented", "the broker keeps nothing of links whose sessions are gone"


TOPIC: Final = {"address": "allowed.topic", "capabilities": ["topic"]}
REFUSED: Final[tuple[tuple[dict[str, Any], set[str]], ...]] = (
    ({"sender": "forbidden"}, NOT_ALLOWED),
    ({"receiver": "forbidden"}, NOT_ALLOWED),
    ({"sender": "$nothing"}, {"amqp:not-found"}),
    ({"receiver": "$nothing"}, {"amqp:not-found"}),
    ({"sender": "topic://allowed"}, NOT_ALLOWED),
    ({"receiver": "topic://allowed"}, NOT_ALLOWED),
    ({"sender": {"target": TOPIC}}, NOT_ALLOWED),
    ({"receiver": {"source": TOPIC}}, NOT_ALLOWED),
    ({"receiver": {"source": {**TOPIC, "capabilities": ["topic", "shared"]}}}, NOT_ALLOWED),
)


def test_links_that_are_refused_at_once(rhea: Path, restricted: BrokerProcess) -> None:
    """A user that may do something at a queue may not do it at the topic of that name."""
    for link, conditions in REFUSED:
        with case(link):
            told = run(rhea, restricted.port, "refusal", **link)
            assert told["condition"] in conditions
            assert not told["terminus"], "an attach that is refused is answered without a terminus"
            assert not told["sendable"]
            assert not {"forbidden", "topic://allowed", "allowed.topic"} & set(told["queues"])
