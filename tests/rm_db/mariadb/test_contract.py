"""This module runs the contract suite over MariaResource, on the system's MariaDB."""

from __future__ import annotations

from xabridge.testing.contract.resource_manager import *  # noqa: F403 — the suite: pytest finds its classes here
