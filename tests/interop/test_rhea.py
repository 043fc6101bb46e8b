"""These tests run rhea, the AMQP client for node, against the embedded broker, with plain traffic and with local and
global transactions.

The checks from the side of rhea's user are in rhea/client.js; these tests check the end of each scenario.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from dtx.broker.access.credentials import set_password
from tests.interop import programs
from xabridge.testing.broker import BrokerProcess

OPEN_SESAME: Final = "open sesame"
CERTIFICATES: Final = Path(__file__).with_name("certificates")


def run(rhea: Path, port: int, scenario: str, **options: Any) -> Any:
    """The result of a scenario."""
    return programs.run(["node", "client.js"], port, scenario, folder=rhea, **options)


@pytest.mark.parametrize(
    ("scenario", "result"),
    [
        ("bodies", 6),
        ("order", 1000),
        ("outcomes", []),
        ("browse", ["one", "two"]),
        ("commit", ["in the transaction"]),
        ("rollback", []),
        ("refusals", ["amqp:transaction:unknown-id", "amqp:not-found"]),
        ("branch", ["new"]),
    ],
)
def test_scenario(rhea: Path, broker: BrokerProcess, scenario: str, result: Any) -> None:
    assert run(rhea, broker.port, scenario) == result


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
        assert run(rhea, broker.port, "identity", **login) == "amqp:unauthorized-access"
        with pytest.raises(AssertionError):
            run(rhea, broker.port, "identity", **{**login, "password": "wrong"})
        assert "wrong name or password for 'shop'" in broker.errors()
        assert broker.stop() == 0
    finally:
        broker.kill()
