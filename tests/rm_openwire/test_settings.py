"""These tests cover the open string: what it says, and what is refused, with its place. They execute the code of
docs/openwire.md against both brokers, and compare its tables with the code.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from rm_amqp.settings import Broker
from rm_openwire.settings import OPTIONS, Settings, parse
from tests.docs.guide import ROOT, blocks
from tests.docs.test_tables_of_settings import rows
from tests.rm_openwire.java_brokers import JavaBroker
from tm import configuration_from
from xa import Code, XaMisuse


def test_the_least_that_can_be_said() -> None:
    assert parse("openwire://broker") == Settings((Broker("broker", 61616),))
    assert parse("openwire+ssl://One,[::1]:7/") == Settings((Broker("one", 61617), Broker("::1", 7)), tls=True)


def test_who_we_are() -> None:
    told = parse("openwire+ssl://orders%40shop:open%20sesame@broker/?connections=2&queues_stay=true")
    assert (told.user, told.password, told.connections, told.queues_stay) == ("orders@shop", "open sesame", 2, True)
    assert "sesame" not in f"{told!r} {told}"
    assert str(told) == "openwire+ssl://broker:61617"
    assert str(parse("openwire://[::1]:7,other")) == "openwire://[::1]:7,other:61616"
    told = parse("openwire://u@broker/?password_env=SECRET&plain_without_tls=true", {"SECRET": "a%20b"})
    assert told.password == "a%20b"  # noqa: S105 — made for this test


@pytest.mark.parametrize(
    ("open_string", "told"),
    [
        ("broker", "not a URL: write scheme://…"),
        ("a://broker", "not a scheme of this resource manager; use openwire:// or openwire+ssl://"),
        ("ssl://broker", "'ssl' is not a scheme"),
        ("openwire://a/orders", "there is no path"),
        ("openwire://a:0", "expected host or host:port"),
        ("openwire://:99999", "host"),
        ("openwire://:secret@a", "a user is expected before the @"),
        ("openwire://u:secret@a", "plain_without_tls"),
        ("openwire://u:secret@a", "a password would be sent as it is, without TLS: use openwire+ssl://"),
        ("openwire://a/?colour=red", "colour: there is no such option"),
        ("openwire://a?timeout=0", "timeout"),
        ("openwire://a?prefetch=many", "prefetch"),
        ("openwire://a?queues_stay=yes", "true or false"),
        ("openwire://a?dead_letter_queue=", "expected a name of 1 to 200"),
        ("openwire+ssl://u:secret@a/?password_env=SET", "password_env goes with a user and without a password"),
        ("openwire+ssl://u@a?password_env=NOT_SET", "NOT_SET"),
        ("openwire+ssl://a?ca=/nowhere.pem", "ca"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(open_string: str, told: str) -> None:
    with pytest.raises(XaMisuse) as raised:
        parse(open_string, {"SET": "secret"}).tls_context()
    assert raised.value.code is Code.XAER_INVAL
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


PAGE = ROOT / "docs" / "openwire.md"


def test_the_guide(broker: JavaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "guide"}
    for block in blocks(PAGE):
        code = block.code.replace("openwire://127.0.0.1:61616", broker.url.rstrip("/"))
        code = code.replace("file:///var/lib/xabridge/", f"file://{tmp_path}/")
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + code, block.page, "exec", dont_inherit=True), namespace)  # noqa: S102 — our own
        elif block.language == "toml" and "node" in tomllib.loads(code):
            (tmp_path / "xabridge.toml").write_text(code, encoding="utf-8")
            assert configuration_from(tmp_path / "xabridge.toml").node == "orders-1"


def test_every_option_is_named_once() -> None:
    assert sorted(name for names, _ in rows("openwire.md", "option") for name in names) == sorted(
        [*OPTIONS, "password_env"]
    )


def test_the_defaults_are_those_of_the_table() -> None:
    settings = parse("openwire://host")
    for names, default in rows("openwire.md", "option"):
        told = default.partition(":")[0]
        if names[0] in OPTIONS and names[0] not in {"ca", "cert", "key"}:
            value = getattr(settings, OPTIONS[names[0]][0])
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            assert (shown.lower() if isinstance(value, bool) else shown) == told, names
