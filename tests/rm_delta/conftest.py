"""The lakes of these tests are in memory: a lake forces each file to disk."""

from tests.memory_folder import tmp_path  # noqa: F401 — the fixture
