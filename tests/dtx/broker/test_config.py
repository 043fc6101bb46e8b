"""These tests cover the broker's configuration by file and flags, and the messages about wrong settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dtx.amqp.sasl.mechanisms import Identity
from dtx.broker.access.permissions import Action
from dtx.broker.config import Address, BrokerConfig, configured_values, load
from dtx.broker.settings import QueueSettings
from xa.configuration import ConfigurationError

DOCUMENT = Path(__file__).parents[3] / "docs" / "broker.md"
CERTIFICATES = Path(__file__).parents[2] / "interop" / "certificates"


def loaded(folder: Path, text: str, **flags: object) -> BrokerConfig:
    """The configuration of a file with this text."""
    path = folder / "xabridge.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, flags)


def test_without_anything_the_broker_is_this_machines() -> None:
    config = load(None, {"store": None})
    assert config.listen == (Address("127.0.0.1", 5672),)
    assert config.store == "sqlite:///xabridge-broker.db"
    assert config.permissions is None
    assert config.users is None


def test_the_example_of_the_documentation_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    config = loaded(tmp_path, block)
    assert [str(address) for address in config.listen + config.listen_tls] == ["127.0.0.1:5672", "0.0.0.0:5671"]
    assert config.settings.create_on_demand is False
    assert config.settings.limits.message_octets == 16 << 20
    assert config.settings.queues["orders"] == QueueSettings(
        max_depth=100_000, max_deliveries=5, dead_letter="*.dead", ttl_ms=86_400_000
    )
    assert config.permissions is not None
    assert config.permissions.may(Identity("orders-svc"), Action.CONSUME, "orders")
    assert not config.permissions.may(Identity("orders-svc"), Action.CREATE, "others")
    assert config.permissions.may_coordinate(Identity("recovery"), "orders-svc")


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    """The sections of others do not matter."""
    others = 'node = "orders-1"\n[resources]\nshop = "postgresql://db/shop"\n'
    text = f'{others}[broker]\nlisten = ["127.0.0.1:1"]\nstore = "sqlite:///a"\nanonymous = false\n'
    config = loaded(tmp_path, text, listen=["127.0.0.1:2"], anonymous=True, store=None)
    assert (config.listen, config.anonymous, config.store) == ((Address("127.0.0.1", 2),), True, "sqlite:///a")
    assert loaded(tmp_path, '[broker]\nhttp = "9464"\n').http == Address(
        "127.0.0.1", 9464
    )  # a port alone is on this machine
    with pytest.raises(match=r"absent\.toml"):
        load(tmp_path / "absent.toml", {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("5672", Address("127.0.0.1", 5672)),
        ("10.0.0.1:1", Address("10.0.0.1", 1)),
        ("[::1]:0", Address("::1", 0)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[broker", "not TOML: "),
        ("broker = 5", "broker: expected a table, not a whole number"),
        ("[broker]\nhttp = 9464", "broker.http: expected host:port, a text, not 9464"),
        ('[broker]\nlog_format = "xml"', 'broker.log_format: expected "text" or "json", not \'xml\''),
        ("[broker]\nlisten = 5", "broker.listen: expected host:port, or a list of them, not 5"),
        ('[broker]\nlisten = "host:99999"', "broker.listen: expected host:port, or a list of them, not 'host:99999'"),
        ('[broker]\nlisten_tls = ["127.0.0.1:1"]', "broker.listen_tls: TLS needs a certificate and its key"),
        ('[broker]\ncertificate = "a"', "broker.key: certificate and key are given together"),
        ("[broker]\nsecure = true", "broker.secure: unknown key; known are anonymous, "),
        ("[broker]\nstand_by = true", "(did you mean standby?)"),
        ("[broker]\nlease_s = 0.5", "broker.lease_s: expected seconds, 1 or more, not 0.5"),
        ("[broker]\nidle_timeout_s = nan", "broker.idle_timeout_s: expected seconds, 0 or more, not nan"),
        ('[broker]\nanonymous = "no"', "broker.anonymous: expected true or false, not 'no'"),
        ("[broker]\nqueues = 5", "broker.queues: expected a table, not a whole number"),
        ("[broker.limits]\nlinks = -1", "broker.limits.links: expected a whole number, 0 or more, not -1"),
        ("[broker.limits]\nlinks = true", "broker.limits.links: expected a whole number, 0 or more, not True"),
        ("[broker.limits]\nconections = 1", "(did you mean connections?)"),
        ("[broker.queues.q]\nmax_deph = 1", "broker.queues.q.max_deph: unknown key; known are "),
        ("[broker.queue_defaults]\nttl_ms = 1.5", "broker.queue_defaults.ttl_ms: expected a whole number, 0 or more"),
        (
            '[broker.queue_defaults]\ndead_letter = ""\nwhen_full = "dead-letter"',
            "broker.queue_defaults.when_full: the queue has no dead letters",
        ),
        (
            "[broker.permissions.a]\ncoordinate = 1",
            'broker.permissions.a.coordinate: expected "none", "own" or "all", not 1',
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)) as refused:
        loaded(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'xabridge.toml'}: ")


def test_a_wrong_flag_is_named_as_it_is_typed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^--listen-tls: expected host:port, or a list of them, not"):
        loaded(tmp_path, '[broker]\nlisten = "127.0.0.1:0"\n', listen_tls=["nowhere"])


def test_each_value_says_where_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    file = tmp_path / "broker.toml"
    file.write_text(
        '[broker]\nstore = "postgresql://broker:${SECRET}@db/broker"\nfence_s = 5\n'
        "[broker.limits]\nqueues = 7\n[broker.queue_defaults]\nttl_ms = 9\n[broker.queues.orders]\nmax_depth = 3\n"
    )
    found = {one.name: one[1:] for one in configured_values(load(file, {"listen": ["127.0.0.1:1"], "users": None}))}
    assert found["fence_s"] == ("5", str(file))

    assert found["limits.queues"] == ("7", str(file))
    assert found["limits.sessions"] == ("1024", "default")
    assert found["listen"] == ("127.0.0.1:1", "--listen")
    assert found["users"] == ("", "default")
    assert found["queues.orders.max_depth"] == ("3", str(file))
    assert found["queues.orders.ttl_ms"] == ("9", f"queue_defaults.ttl_ms in {file}")
    assert found["queues.orders.dead_letter"] == ("*.dead", "default")
    assert "s3cret" not in str(found)
    assert {"settings", "permissions", "origins"}.isdisjoint(found)
