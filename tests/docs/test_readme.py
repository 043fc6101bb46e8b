"""The code blocks of the README are executed, in their order and in one namespace."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tm import configuration_from

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_python_blocks_run(tmp_path: Path) -> None:
    namespace: dict[str, object] = {"folder": tmp_path}
    blocks = _blocks("python")
    assert len(blocks) >= 3
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"README.md, python block {number}", "exec"), namespace)  # noqa: S102 — our own README


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (block,) = _blocks("toml")
    tomllib.loads(block)
    path = tmp_path / "xabridge.toml"
    path.write_text(block, encoding="utf-8")
    assert configuration_from(path).node == "orders-1"


def test_the_commands_are_targets() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:`|^)make (\w+)", README, re.MULTILINE))
    assert {"demo", "test", "setup", "check", "bench"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
