"""The checks of `xabridge doctor` for a database that decides, of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from rm_db.address import DECIDER_PREFIX, POSTGRES_SCHEMES, Address
from rm_db.decider.engine import make_engine, parse_url
from xa import XaError
from xa.diagnosis import Check, Diagnosis, Health, not_opened
from xa.sql import mariadb
from xa.sql.url import shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL


def diagnose_decider(open_string: str) -> Diagnosis:
    """A database that decides, of any kind."""
    scheme = open_string.removeprefix(DECIDER_PREFIX).partition("://")[0]
    if scheme in POSTGRES_SCHEMES:
        from rm_db.postgres.diagnosis import diagnose_postgres  # noqa: PLC0415 — loads psycopg, which others don't need

        return diagnose_postgres(open_string, two_phase=False)
    try:
        address = Address.parse(open_string)
        return Diagnosis(tuple(_sql_reached(parse_url(address), address)))
    except XaError as error:
        return not_opened(error)


def _sql_reached(url: URL, address: Address) -> Iterator[Check]:
    shown = shown_url(url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        folder = Path(url.database or "").absolute().parent
        if folder.is_dir():
            yield Check(Health.OK, "reachable", f"{shown}: there is none yet; the first start makes it")
        else:
            yield Check(Health.FAIL, "reachable", f"{folder} is not there", f"make it: mkdir -p {folder}")
        return

    engine = make_engine(url, 1, 10.0, address.reply_s, plain_without_tls=address.plain_without_tls)
    try:
        with engine.connect() as connection:
            yield Check(Health.OK, "reachable", f"{shown}: decides")
            if engine.dialect.name in mariadb.DIALECTS:
                for weakness, advice in mariadb.weaknesses(connection):
                    found = f"{weakness}: a crash of the server's machine can lose a decision"
                    yield Check(Health.FAIL, "durability", found, advice)
    except SQLAlchemyError as error:
        advice = "start it, or correct the URL in the configuration"
        yield Check(Health.FAIL, "reachable", f"{shown}: {error}", advice)
    finally:
        engine.dispose()
