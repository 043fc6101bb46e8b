"""The contract suite over PostgresResource."""

from __future__ import annotations

from tests.contract.resource_manager import *  # noqa: F403 — the suite: pytest finds its classes here
