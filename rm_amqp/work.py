"""Workplace: what a session asks of its resource manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rm_amqp.association import Association
    from rm_amqp.loss import ConnectionLost, TimedOut
    from rm_amqp.pool import Seat
    from rm_amqp.settings import Settings
    from rm_amqp.standing import Standing
    from xa import XaError


class Workplace(Protocol):
    """Where sessions work."""

    @property
    def settings(self) -> Settings:
        """What the open string says."""
        ...

    def clock(self) -> float:
        """The time, for deadlines."""
        ...

    def begin_work(self, standing: Standing) -> Association | None:
        """The association that work is done for, made where the resource manager registers itself. None: outside of
        any transaction; `end_work` follows. XAER_PROTO: this is not the caller's to do."""
        ...

    async def begin_work_async(self, standing: Standing) -> Association | None:
        """The same, without blocking the event loop."""
        ...

    def seat(self, standing: Standing) -> Seat:
        """The channel of the thread of control that works."""
        ...

    def end_work(self, standing: Standing) -> None:
        """Work outside of any transaction is complete."""
        ...

    def lose_work(self, standing: Standing, why: ConnectionLost | TimedOut) -> XaError:
        """The connection was lost at work; the error to raise."""
        ...
