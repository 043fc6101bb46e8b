"""DeclaredSchedule: a function with the times at which it runs. `xabridge.app.scheduler` runs it.

@app.schedule("*/5 * * * *")
def announce(tx: Shop, due: datetime) -> None: ...
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypedDict, TypeVar, Unpack
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from tm import ConfigurationError
from tm.options import Text, check, misfit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from tm.options import Option
    from xabridge.app.typed_handler import TypedHandler

P = ParamSpec("P")
R = TypeVar("R")


EXPRESSION: Final = Text('a cron expression, as in schedule("*/5 * * * *")')


class _Timezone(Text):
    """The name of a time zone."""

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and _zone(value) is not None

    def meant(self, value: Any) -> Any:
        if isinstance(value, ZoneInfo):
            return value.key
        if value is UTC:
            return "UTC"
        close = get_close_matches(str(value), available_timezones(), 1, cutoff=0.8)
        return close[0] if close else None


OPTIONS: Final[dict[str, Option]] = {
    "timezone": _Timezone('the name of a time zone, as "Europe/Berlin"'),
    "resource": Text("the name of a database among the resources", optional=True),
}


class ScheduleOptions(TypedDict, total=False):
    """The keyword arguments of `App.schedule`: what `ScheduleSettings` has but for `expression`."""

    timezone: str
    resource: str | None


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """When a schedule is due, and which database keeps that."""

    expression: str
    timezone: str = "UTC"
    resource: str | None = None

    @classmethod
    def of(cls, expression: str, **options: Unpack[ScheduleOptions]) -> Self:
        """Those that were given; ConfigurationError for one that there is not, or that does not fit."""
        if not EXPRESSION.fits(expression):
            raise ConfigurationError(f"schedule: {misfit('expression', EXPRESSION, expression)}")
        check(f"schedule {expression!r}", OPTIONS, options)
        return cls(expression, **options)


class DeclaredSchedule(Generic[P, R]):
    """A function with the times at which it runs. Called, it calls the function."""

    def __init__(
        self,
        function: Callable[P, R],
        handler: TypedHandler,
        settings: ScheduleSettings,
    ) -> None:
        self.function = function
        self.handler = handler
        self.expression = settings.expression
        self.timezone = settings.timezone
        self.resource = settings.resource
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._zone = ZoneInfo(settings.timezone)
        body = handler.signature.body
        if any(one.messages for one in handler.signatures) or (body is not None and body[1] is not datetime):
            raise ConfigurationError(
                f"{self.name}: it gets the transaction, dependencies, and a datetime: when it is due"
            )
        self.after(datetime.now(UTC))  # which says what is wrong with the expression

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)

    @property
    def times(self) -> str:
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


def _zone(name: str) -> ZoneInfo | None:
    """The time zone of this name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
