"""The throw-away PostgreSQL of the tests: the one that the benchmarks and the demo start too."""

from __future__ import annotations

from bench.postgres import Postgres

__all__ = ["Postgres"]
