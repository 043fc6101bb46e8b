"""This module gives the tests their throw-away PostgreSQL, the same as in the benchmarks and the demo, without its
password.
"""

from __future__ import annotations

from xabridge.testing import postgres

__all__ = ["Postgres"]


class Postgres(postgres.Postgres):
    """It takes everybody's word for who they are: tests come as many users, none of whom has a password."""

    authentication = "trust"
