"""Logs, stores and databases of these tests are in memory: a disk is what they would wait for most."""

from tests.memory_folder import tmp_path  # noqa: F401 — the fixture
