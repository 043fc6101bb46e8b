"""This test has an application work through a SQLAlchemy engine of its own, which is made before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, make_url, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tm import Configuration, ResourceConfig, RolledBack
from xabridge import App, Tx, take_part
from xabridge.testing import TestApp

if TYPE_CHECKING:
    from tests.postgres import Postgres


class Base(DeclarativeBase):
    """The tables."""


class Row(Base):
    """An order."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.slow
def test_an_engine_takes_part_in_an_app_that_does_not_run_yet(postgres: Postgres) -> None:
    url = postgres.create_database()
    app = App(Configuration("n", "file:///nowhere", {"broker": "amqp://nowhere.invalid", "shop": url}))
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    take_part(engine, app, "shop")
    Base.metadata.create_all(engine)  # its own connection: the App does not run

    @app.consumer("orders")
    def handle(number: int, tx: Tx) -> None:
        with Session(engine) as session:
            session.add(Row(number=number))
            session.commit()
        tx.send("done", number)
        assert tx.resources == ("broker", "shop")

    with TestApp(app, resources={"shop": ResourceConfig(url)}) as test:
        test.deliver("orders", 1)
        test.fail("shop", at="prepare")
        with pytest.raises(RolledBack):
            test.deliver("orders", 2)
        assert test.sent("done") == [1]
        with Session(engine) as session:
            assert session.scalars(select(Row.number)).all() == [1]
        test.deliver("orders")
        with test.engine("shop").begin() as connection:
            assert connection.execute(text("SELECT number FROM orders ORDER BY number")).scalars().all() == [1, 2]
    engine.dispose()
