"""The throw-away PostgreSQL of the tests: the one that the benchmarks and the demo start too, without its password."""

from __future__ import annotations

from xabridge.testing import postgres

__all__ = ["Postgres"]


class Postgres(postgres.Postgres):
    """It takes everybody's word for who they are: tests come as many users, none of whom has a password."""

    authentication = "trust"
