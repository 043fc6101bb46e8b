"""These tests execute the code of docs/openwire.md against both brokers, and compare its tables with the code."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from rm_openwire.settings import OPTIONS, parse
from tests.docs.guide import ROOT, blocks
from tests.docs.test_tables_of_settings import rows
from tm import configuration_from

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

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
