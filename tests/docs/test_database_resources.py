"""The code blocks of docs/database-resources.md are executed, in their order and in one namespace, over PostgreSQL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rm_db.address import _DEFAULTS
from rm_db.decisions import END_BATCH
from rm_db.pool import RESERVE
from tm import ResourceConfig, configuration_from

if TYPE_CHECKING:
    import pytest

    from tests.postgres import Postgres

PAGE = (Path(__file__).parents[2] / "docs" / "database-resources.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_blocks_run(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = {
        "postgresql://shop@127.0.0.1/shop": postgres.create_database(),
        "file:///var/lib/xabridge/log": f"file://{tmp_path}/log",
    }
    configuration, decider = _blocks("toml")
    (tmp_path / "xabridge.toml").write_text(_placed(configuration, places), encoding="utf-8")
    namespace: dict[str, object] = {}
    blocks = _blocks("python")
    assert len(blocks) >= 6
    for number, block in enumerate(blocks, start=1):
        code = compile(_placed(block, places), f"database-resources.md, python block {number}", "exec")
        exec(code, namespace)  # noqa: S102 — our own page
    with_decider = tmp_path / "decider.toml"
    with_decider.write_text(f'node = "databases-3"\n{decider}', encoding="utf-8")
    ledger = configuration_from(with_decider).resources["ledger"]
    assert isinstance(ledger, ResourceConfig)
    assert ledger.mode == "decider"


def _placed(block: str, places: dict[str, str]) -> str:
    for old, new in places.items():
        block = block.replace(old, new)
    return block


def test_the_parameters_and_numbers_are_those_of_the_code() -> None:
    told = dict(re.findall(r"^\| `(xa_\w+)` \| `?(\w+)`? \|", PAGE, re.MULTILINE))
    assert told == _DEFAULTS
    assert f"have {RESERVE} connections more" in PAGE
    assert f"batches of {END_BATCH}" in PAGE
