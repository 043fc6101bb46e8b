"""These tests execute the code of docs/openwire.md against both brokers, and compare its tables with the code."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from rm_openwire.settings import OPTIONS, parse
from tests.docs.guide import ROOT, blocks
from tests.docs.test_tables_of_settings import rows
from tm import configuration_from
from xa import Code, XaError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rm_openwire.java_brokers import JavaBroker

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


@pytest.mark.parametrize(
    ("open_string", "why"),
    [
        ("tcp://host", "scheme"),
        ("openwire://host/queue", "path"),
        ("openwire://:99999", "host"),
        ("openwire://host:0", "host:port"),
        ("openwire://host?colour=red", "colour"),
        ("openwire://host?timeout=0", "timeout"),
        ("openwire://host?prefetch=many", "prefetch"),
        ("openwire://host?queues_stay=yes", "true or false"),
        ("openwire://host?dead_letter_queue=", "expected a name of 1 to 200"),
        ("openwire://ada:secret@host", "plain_without_tls"),
        ("openwire+ssl://ada@host?password_env=NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE"),
        ("openwire+ssl://host?ca=/nowhere.pem", "ca"),
    ],
)
def test_open_strings_that_are_refused(open_string: str, why: str) -> None:
    with pytest.raises(XaError, match=why) as refused:
        parse(open_string).tls_context()
    assert refused.value.code is Code.XAER_INVAL
    assert "secret" not in str(refused.value)


def test_what_an_open_string_says() -> None:
    settings = parse("openwire+ssl://ada:p%40ss@[::1]:7,other/?idle_timeout=3", {})
    assert list(map(str, settings.addresses)) == ["[::1]:7", "other:61617"]
    assert (settings.user, settings.password, settings.tls, settings.idle_timeout_s) == ("ada", "p@ss", True, 3.0)
    assert "p@ss" not in repr(settings)
    assert str(settings) == "openwire+ssl://[::1]:7,other:61617"
    told = parse("openwire://ada@host?password_env=SECRET&plain_without_tls=true", {"SECRET": "x"})
    assert told.password == "x"  # noqa: S105 — made for this test
