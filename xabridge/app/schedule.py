"""DeclaredSchedule: a function with the times at which it runs. `xabridge.app.scheduler` runs it.

@app.schedule("*/5 * * * *")
def announce(tx: Shop, due: datetime) -> None: ...
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tm import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from xabridge.app.typed_handler import TypedHandler

P = ParamSpec("P")
R = TypeVar("R")


class DeclaredSchedule(Generic[P, R]):
    """A function with the times at which it runs. Called, it calls the function."""

    def __init__(
        self,
        function: Callable[P, R],
        handler: TypedHandler,
        expression: str,
        timezone: str,
        resource: str | None,
    ) -> None:
        self.function = function
        self.handler = handler
        self.expression = expression
        self.timezone = timezone
        self.resource = resource
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._zone = _zone(timezone, self.name)
        body = handler.signature.body
        if any(one.messages for one in handler.signatures) or (body is not None and body[1] is not datetime):
            raise ConfigurationError(
                f"{self.name}: it gets the transaction, dependencies, and a datetime: when it is due"
            )
        self.after(datetime.now(UTC))  # which says what is wrong with the expression

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)

    @property
    def told(self) -> str:
        """What its row says of the times, so that a change of these is noticed."""
        return f"{self.expression} {self.timezone}"

    def after(self, moment: datetime) -> datetime:
        """The next time after `moment`."""
        try:
            from cronsim import CronSim, CronSimError  # noqa: PLC0415 — of the extra `schedule`
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"{self.name}: schedules need cronsim: install xabridge[schedule]") from error
        try:
            return next(CronSim(self.expression, moment.astimezone(self._zone)))
        except (CronSimError, StopIteration) as error:
            raise ConfigurationError(f"{self.name}: {self.expression!r} is no cron expression: {error}") from error


def _zone(name: str, whose: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ConfigurationError(f"{whose}: timezone {name!r}: {error}") from error
