"""Failures: why messages could not be handled, remembered until they are handled or put away, for the dead letter.

A message comes again after a failure, perhaps to another process, so that what is remembered here may be incomplete:
where nothing is known of a message that was delivered too often, its dead letter says that. What is remembered is
bounded, the oldest goes first.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tm.consumer.history import is_new
from tm.errors import RolledBack

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

MOST: Final = 1000
"""Messages, and places in the code, that are remembered."""
MOST_TEXT: Final = 2000
"""Characters of a reason that go into a dead letter."""
_PACKAGES: Final = ("xa", "dtx", "rm_amqp", "rm_db", "tm", "xabridge")
_OTHERS: Final = (
    *(str(Path(__file__).parents[2] / name) + "/" for name in _PACKAGES),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
    f"{sys.prefix}/lib",
)
"""The folders with code that is not the application's."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The known failures of one message. Times are milliseconds since 1970."""

    reason: str = ""
    """What it has failed with, where that was its own fault."""
    place: str = ""
    first_ms: int | None = None
    last_ms: int | None = None
    failures: int = 0
    """How often it has failed alone, by its own fault."""
    excused: int = 0
    """How many deliveries don't count that the broker may count."""
    refused: bool = False
    """Whether what it does can't be committed, so that the next attempt is to count at the broker."""
    broken: int = 0
    """How often in a row a connection broke under it alone, with no outage that was seen in between."""
    outages: int = 0
    """How many outages had been seen then."""
    last_said: str = ""
    """The result of its last attempt, where the fault is unknown."""
    first_said_ms: int | None = None
    """When the first attempt ended so."""
    explained: bool = False
    """Whether it was reported to the broker as failed."""
    vain: bool = False
    """Whether it could not be put away as a dead letter."""
    final: str = ""
    """The digest of the message's content, where no further attempt can help. Ids may be used twice: another message
    with this id is not refused for it."""


class Failures:
    """Those of one consumer, from any thread."""

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._of: dict[str, Failure] = {}
        self._places: dict[str, None] = {}

    def note(
        self,
        message: Any,
        error: BaseException,
        *,
        alone: bool = True,
        final: bool = False,
        refused: bool = False,
        explained: bool = False,
    ) -> None:
        """`message` has failed, by its own fault. `alone`: in a transaction of its own; `final`: no further attempt can
        help; `refused`: its handler has returned, and the commit was refused."""
        reason, place, now, content = reason_from(error), place_of(error), self.now_ms(), digest_of(message)

        def failed(before: Failure) -> Failure:
            if before.final == content:  # a failure to put it away does not hide why it is to be
                return replace(before, last_ms=now)
            first = now if before.first_ms is None else before.first_ms
            return replace(
                before, reason=reason, place=place, first_ms=first, last_ms=now, failures=before.failures + alone,
                refused=refused, explained=explained, final=content if final else "",
            )  # fmt: skip

        self._change(message, failed)

    def excuse(self, message: Any) -> None:
        """A delivery of `message` does not count, and the broker counts it."""
        self._change(message, lambda before: replace(before, excused=before.excused + 1))

    def note_untold(self, message: Any, error: BaseException, *, refused: bool) -> None:
        """Notes an error whose cause is unknown. `refused`: what `message` does can't be committed, and the next
        attempt is to count at the broker."""
        said, now = reason_from(error), self.now_ms()

        def ended(before: Failure) -> Failure:
            first = now if before.first_said_ms is None else before.first_said_ms
            return replace(before, last_said=said, first_said_ms=first, refused=before.refused or refused)

        self._change(message, ended)

    def note_broken(self, message: Any, error: BaseException, outages: int) -> None:
        """A connection broke under `message` alone, after so many outages that were seen."""
        said, now = reason_from(error), self.now_ms()

        def broke(before: Failure) -> Failure:
            times = before.broken if before.outages == outages else 0
            first = now if before.first_said_ms is None else before.first_said_ms
            return replace(before, broken=times + 1, outages=outages, last_said=said, first_said_ms=first)

        self._change(message, broke)

    def note_vain(self, message: Any) -> None:
        """`message` could not be put away as a dead letter."""
        self._change(message, lambda before: replace(before, vain=True))

    def _change(self, message: Any, change: Callable[[Failure], Failure]) -> None:
        key = name_of(message)
        with self._lock:
            before = self._of.pop(key, None)
            self._of[key] = change(Failure() if before is None or is_new(message) else before)
            if len(self._of) > MOST:
                del self._of[next(iter(self._of))]

    def known(self, message: Any) -> Failure | None:
        """The known failures of `message`."""
        with self._lock:
            return self._of.get(name_of(message)) if self._of else None

    def now_ms(self) -> int:
        """The time, milliseconds since 1970."""
        return int(self._wall_s() * 1000)

    def is_final(self, message: Any) -> bool:
        """Whether `message` has failed in a way in which it will fail again."""
        failure = self.known(message)
        return failure is not None and bool(failure.final) and failure.final == digest_of(message)

    def forget(self, message: Any) -> None:
        """`message` was handled, or put away."""
        if self._of:
            with self._lock:
                self._of.pop(name_of(message), None)

    def is_new(self, place: str) -> bool:
        """Whether nothing has failed at this place before; from now on something has."""
        with self._lock:
            if place in self._places:
                return False
            self._places[place] = None
            if len(self._places) > MOST:
                del self._places[next(iter(self._places))]
            return True


def reason_from(error: BaseException) -> str:
    """What a dead letter says of an error: of a rollback only why, because the rest is meant for a caller."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, RolledBack) and error.outcome is not None and error.outcome.reasons:
        reasons = error.outcome.reasons
        is_marked = isinstance(reasons[0].said, str) and not reasons[0].resource
        said = "; ".join(map(str, reasons))
        said = said if is_marked else f"{type(error).__name__}: {said}"
    return said[:MOST_TEXT].encode(errors="backslashreplace").decode()  # a message can't carry half a surrogate


def name_of(message: Any) -> str:
    """A message as log lines name it: by its id, or by a digest of its content."""
    identity = getattr(message, "id", None)
    if identity is not None:
        return repr(identity)
    return "#" + digest_of(message)


def digest_of(message: Any) -> str:
    """A digest of what a message says."""
    said = repr((getattr(message, "subject", None), getattr(message, "properties", None), getattr(message, "body", "")))
    return hashlib.blake2b(said.encode(errors="replace"), digest_size=8).hexdigest()


def place_of(error: BaseException) -> str:
    """Where in the application's code an exception came from: the innermost line that is neither ours nor a library's.
    Empty where there is none, as for a commit that was refused."""
    place = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__file__", ""))  # compiled code has only this as a whole path
        if not code.co_filename.startswith((*_OTHERS, "<")) and not module.startswith(_OTHERS):
            place = f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return place
