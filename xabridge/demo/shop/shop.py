"""Shop: where a shop's broker and database are, and the configuration of those who work in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from tm.resources import Mode

BROKER: Final = "broker"
DATABASE: Final = "shop"
"""The names of the two resources."""
TIMEOUT_S: Final = 5
"""How long a transaction of the shop may take."""
BRANCH_TIMEOUT_S: Final = TIMEOUT_S + 1
"""A worker that is killed between the end of its work and prepare leaves an abandoned branch: the broker
gives its messages back after this."""


@dataclass(frozen=True, slots=True)
class Shop:
    """The open strings of both, and how the database takes part."""

    broker: str = field(repr=False)
    database: str = field(repr=False)
    mode: Mode = "two-phase"

    def configure(self, file: Path, node: str, log: Path, *, http: str = "", http_token_env: str = "") -> Path:
        """Writes an xabridge.toml for `node`, which keeps its decisions in the folder `log`, or in the database. With
        `http` it tells a console of itself there."""
        lines = [f"node = {json.dumps(node)}", f"timeout_s = {TIMEOUT_S}", "recovery_interval_s = 2"]
        if self.mode != "decider":
            lines.append(f"log = {json.dumps(f'file://{log}')}")
        if http:
            lines += [f"http = {json.dumps(http)}", f"http_token_env = {json.dumps(http_token_env)}"]
        lines += [
            "",
            "[resources]",
            f"{BROKER} = {json.dumps(self.broker)}",
            f'{DATABASE} = {{ url = {json.dumps(self.database)}, mode = "{self.mode}" }}',
        ]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file
