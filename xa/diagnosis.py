"""Diagnosing: an optional capability of a resource manager, for `xabridge doctor`. It makes checks of its own, and says
what to do about what they find.

An instance offers it if and only if it has the method. Where it has not, the doctor only opens it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from xa.codes import Code
from xa.secrets import masked, says_not_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from xa.errors import XaError
    from xa.telemetry.conditions import Condition


class Health(Enum):
    """The result of a check. WARN: it works, and may not for long, or not as well as it could."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was `found` ("max_prepared_transactions is 0"), and where it is not OK, the `advice` ("set
    it to at least 40 and restart PostgreSQL"). `subject` names what was looked at, in a word or two, and stays the same
    from one version to the next, for scripts. `found` may quote a server: passwords in it are masked. `condition` is
    the one that holds, where what was found is one of the list."""

    health: Health
    subject: str
    found: str
    advice: str = ""
    condition: Condition | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", masked(self.found))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A resource manager's report on itself. `clock_ahead_s`: by how much the clock of its server is ahead of that of
    this process (`time.time()`), the way there and back counted in; None where it was not asked."""

    checks: tuple[Check, ...]
    clock_ahead_s: float | None = None


@runtime_checkable
class Diagnosing(Protocol):
    """A resource manager that offers it."""

    def diagnose(self, open_string: str) -> Diagnosis:
        """Looks whether what `open_string` names can be reached and does what it must.

        Precondition: none; the instance need not be open, and is afterwards as it was before. It changes nothing,
        neither here nor there, and ends within the time that `open` would take. What is wrong is a Check and not an
        exception: a resource that can't be reached, a login that is refused, an open string that is no good.
        Checks stand in the order in which one depends on the other, from whether it can be reached on.
        """
        ...


_CORRECT: Final = "correct the URL in the configuration"
VARIABLE: Final = "set the variable where the processes of this configuration run, and here"
"""What to do about an environment variable that is not set."""
_NOT_OPENED: Final[dict[Code, tuple[str, str]]] = {
    Code.XAER_INVAL: ("open string", _CORRECT),
    Code.XAER_RMFAIL: (
        "reachable",
        "start the {server}, or make it reachable from this machine; its address is the URL in the configuration",
    ),
    Code.XA_RETRY: (
        "room",
        "close other connections, raise max_connections, or ask for fewer with xa_pool_size in the URL",
    ),
}
"""The code of an open that failed → the check that failed, and how to correct it."""


def not_opened(
    error: XaError, subject: str = "open string", advice: str = _CORRECT, *, server: str = "server"
) -> Diagnosis:
    """The report where `open` would raise `error`. `subject` and `advice` hold for an XAER_RMERR."""
    subject, advice = _NOT_OPENED.get(error.code, (subject, advice))
    if says_not_set(error.message):
        advice = VARIABLE
    return Diagnosis((Check(Health.FAIL, subject, error.message, advice.format(server=server)),))


def clock_ahead_s(ask: Callable[[], float]) -> float:
    """By how much a server's clock is ahead; `ask` asks the server for the seconds since 1970."""
    before = time.time()
    there = ask()
    return there - (before + time.time()) / 2
