"""EmbeddedServers: the embedded broker and the embedded PostgreSQL of a shop, as processes of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xabridge.demo.shop.orders import open_books
from xabridge.demo.shop.shop import BRANCH_TIMEOUT_S, Shop
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.ports import free_port
from xabridge.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from tm.resources import Mode

HOST: Final = "127.0.0.1"


class EmbeddedServers:
    """Both, with their data below `folder`. Each can be killed and started again, with what it has stored."""

    def __init__(self, folder: Path, *, prepared_transactions: bool = True) -> None:
        (folder / "broker").mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.broker = BrokerProcess(folder / "broker", "--listen", f"{HOST}:{self.port}")
        settings = {} if prepared_transactions else {"max_prepared_transactions": "0"}
        self.postgres = EmbeddedPostgres(folder / "postgres", settings)
        self._database = ""

    def open(self) -> None:
        """Starts both, and makes the shop's database."""
        self.broker.start()
        self.postgres.start()
        self._database = self.postgres.create_database("shop")
        open_books(self._database)

    def shop(self, mode: Mode = "two-phase") -> Shop:
        """Where the shop is."""
        return Shop(f"amqp://{HOST}:{self.port}/?branch_timeout={BRANCH_TIMEOUT_S}", self._database, mode)

    def close(self) -> None:
        """Ends both, at once; the data goes."""
        try:
            self.broker.kill()
        finally:
            self.postgres.remove()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
