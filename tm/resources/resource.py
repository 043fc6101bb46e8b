"""Resource: a resource manager under the name that the configuration gives it; how it is found, opened and reopened.

Its factory is an entry point of the group `xabridge.resource_managers` whose name is the scheme of the URL. With mode
"decider" the name is `decider+` and the scheme. For a decider without an entry point of its own, the entry point
`decider+*` is called with the scheme; it returns a factory or raises LookupError.

A thread of control whose verb raised XAER_RMFAIL opens the resource again before its next verb. If that fails, the
resource is down for every thread, and is not tried again before its back-off has passed.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard
from weakref import WeakSet

from tm.outcome import named
from tm.resources.states import RESOURCE, ResourceState, ResourceVerb
from tm.two_phase.return_codes import Verb
from xa import TMREGISTER, TMUSEASYNC, Code, ResourceUnavailable, XaError, thread_of_control, xa_error
from xa.configuration import TEXT, ConfigurationError, choice, declared, setting
from xa.machine import advance
from xa.open_string import OpenString, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from xa import (
        BreakingConnections,
        DecidingResource,
        EndingWithPrepare,
        Handle,
        Registrar,
        ResourceFactory,
        ResourceManager,
        StartingAtOnce,
        ThreadOfControl,
        Xid,
    )
    from xa.outcome_notes import OutcomeNotes

logger = logging.getLogger("xabridge.tm.resources")

GROUP: Final = "xabridge.resource_managers"
_DECIDER: Final = "decider+"
_ANY_DECIDER: Final = "decider+*"
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 5.0
"""So long an application may be refused after the resource is back. A try that took longer, because no answer came, is
followed by a pause as long."""
BROKEN_OFF_S: Final = 5.0
"""How long a resource is not tried again after a caller did not want to wait for it."""
MAX_NAME: Final = 48

_ROUTINE: Final[dict[Verb, str]] = {
    Verb.END: "end",
    Verb.END_LATE: "end",
    Verb.PREPARE: "prepare",
    Verb.COMMIT: "commit",
    Verb.COMMIT_AGAIN: "commit",
    Verb.COMMIT_ONE_PHASE: "commit",
    Verb.ROLLBACK: "rollback",
    Verb.FORGET: "forget",
}
"""Verb → the XA routine that carries it out; the decider's has a signature of its own."""

Mode = Literal["two-phase", "decider"]


@dataclass(frozen=True, slots=True)
class ResourceConfig:
    """How a resource is configured. `factory` is for resource managers that no entry point names."""

    url: str = field(repr=False, metadata=declared(TEXT, "where it is", secret=True))
    mode: Mode = setting("two-phase", choice("two-phase", "decider"), "its part in a transaction")
    factory: ResourceFactory | None = None


def find_factory(name: str, config: ResourceConfig) -> ResourceFactory:
    """The factory for the resource `name`; ConfigurationError when its scheme is not registered."""
    if config.mode not in ("two-phase", "decider"):
        raise ConfigurationError(f'resources.{name}.mode: {config.mode!r} is neither "two-phase" nor "decider"')
    if config.factory is not None:
        return config.factory

    try:
        scheme = OpenString.parse(config.url).scheme
    except ValueError as error:
        raise ConfigurationError(f"resources.{name}.url: {shown(config.url)!r}: {error}") from None
    if config.mode == "decider" and not scheme.startswith(_DECIDER):
        scheme = f"{_DECIDER}{scheme}"
    found: Any = _registered(name, scheme)
    why = ""
    if found is None and config.mode == "decider":
        try:
            found = _registered(name, _ANY_DECIDER, lambda find: find(scheme.removeprefix(_DECIDER)))
        except LookupError as error:
            why = f"; {error}"

    if found is None:
        known = ", ".join(sorted(entry.name for entry in _installed())) or "none"
        if config.mode != "decider" and _can_decide(name, scheme):
            why = '; as the one that decides it can take part: mode = "decider"'
        raise ConfigurationError(
            f"resources.{name}.url: no resource manager is registered for {scheme}:// (registered: {known}{why}): "
            "correct the URL, or install the package that has it"
        )
    factory: ResourceFactory = found
    return factory


def _can_decide(name: str, scheme: str) -> bool:
    """Whether a resource manager is registered that takes the scheme in mode "decider"."""
    if _registered(name, f"{_DECIDER}{scheme}") is not None:
        return True
    try:
        return _registered(name, _ANY_DECIDER, lambda find: find(scheme)) is not None
    except LookupError:
        return False


def _registered(name: str, scheme: str, then: Callable[[Any], Any] = lambda found: found) -> Any:
    """The factory that is registered for a scheme, passed through `then`; None if nothing is registered."""
    entries = _installed().select(name=scheme)
    if not entries:  # a package may have been installed since
        _installed.cache_clear()
        entries = _installed().select(name=scheme)
    if not entries:
        return None
    try:
        return then(next(iter(entries)).load())
    except (ImportError, AttributeError) as error:
        advice = "" if "install " in str(error) else "; install its package again"  # ours say which extra they need
        raise ConfigurationError(
            f"resources.{name}.url: the resource manager registered for {scheme}:// can't be loaded: {error}{advice}"
        ) from error


@cache
def _installed() -> EntryPoints:
    """The resource managers that packages register, as they were found: finding them reads a file of every package."""
    return entry_points(group=GROUP)


def is_decider(manager: ResourceManager) -> TypeGuard[DecidingResource]:
    """Whether `manager` can be the one that decides."""
    return hasattr(manager, "decide") and hasattr(manager, "settle")


def ends_late(manager: ResourceManager) -> TypeGuard[EndingWithPrepare]:
    """Whether `manager` can tell the end of an association with the prepare."""
    return hasattr(manager, "end_late")


def breaks_off(manager: ResourceManager) -> TypeGuard[BreakingConnections]:
    """Whether the connections of `manager` can be broken while they are waited for."""
    return hasattr(manager, "break_off")


def starts_at_once(manager: ResourceManager) -> TypeGuard[StartingAtOnce]:
    """Whether `manager` knows whether a start would wait."""
    return hasattr(manager, "starts_at_once")


def takes_notes(manager: ResourceManager) -> TypeGuard[OutcomeNotes]:
    """Whether `manager` can tell later what became of a branch."""
    return hasattr(manager, "outcome_note") and hasattr(manager, "outcomes")


class Resource:
    """One configured resource manager, under its name and rmid. `measured` makes of a resource manager, with its name
    and kind, one whose verbs are measured."""

    __slots__ = (
        "_backoff_s",
        "_clock",
        "_lock",
        "_lost",
        "_retry_at",
        "bqual",
        "decides",
        "dynamic",
        "identity",
        "name",
        "notes",
        "overlaps",
        "rm",
        "rmid",
        "routines",
        "state",
        "suspect",
        "system",
        "url",
        "why",
    )

    def __init__(
        self,
        name: str,
        rmid: int,
        config: ResourceConfig,
        registrar: Registrar,
        clock: Callable[[], float] = time.monotonic,
        measured: Callable[[str, ResourceManager, str], ResourceManager] | None = None,
    ) -> None:
        bqual = name.encode()
        if not 1 <= len(bqual) <= MAX_NAME:
            key = name or '""'
            raise ConfigurationError(
                f"resources.{key}: a name has 1 to {MAX_NAME} octets, this has {len(bqual)}: choose another"
            )

        self.name = name
        self.rmid = rmid
        self.url = config.url
        self.system = _system(config.url)
        """The kind of the server, as telemetry calls it."""
        self.bqual = bqual
        self.rm = find_factory(name, config)(registrar)
        if measured is not None:
            self.rm = measured(name, self.rm, self.system)
        self.routines: dict[Verb, Callable[[Xid, int, int], Code | Handle]] = {
            verb: getattr(self.rm, routine) for verb, routine in _ROUTINE.items()
        }
        self.decides = config.mode == "decider"
        if ends_late(self.rm) and not self.decides:
            self.routines[Verb.END_LATE] = self.rm.end_late
        if self.decides and not is_decider(self.rm):
            raise ConfigurationError(
                f'resources.{name}.mode: {self.rm.name} can\'t be the one that decides: use mode = "two-phase"'
            )

        self.overlaps = bool(self.rm.flags & TMUSEASYNC)
        self.dynamic = bool(self.rm.flags & TMREGISTER)
        self.notes: OutcomeNotes | None = self.rm if takes_notes(self.rm) else None
        """The resource manager, where it can tell later what became of a branch."""
        self.identity: str | None = None
        self.state = RESOURCE.initial
        self.suspect = True
        """Whether it is not open, or a thread of control has lost its connection; kept here because every verb asks."""
        self.why = RESOURCE.initial.value
        self._lost: WeakSet[ThreadOfControl] = WeakSet()
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at = 0.0
        self._backoff_s = BACKOFF_FIRST_S

    @property
    def decider(self) -> DecidingResource:
        """The resource manager as the one that decides."""
        if not is_decider(self.rm):
            raise TypeError(f"{self.name} is not a decider")
        return self.rm

    def reopen(self, *, now: bool = False) -> None:
        """Opens the resource again, if it is down or the calling thread of control has lost it. To be called if
        `suspect` is set. XaError: it can't be used. While its back-off lasts, that is XAER_RMFAIL without another try,
        unless `now`."""
        control = thread_of_control()
        with self._lock:
            if self.state is ResourceState.OPEN and control not in self._lost:
                self.suspect = bool(self._lost)
                return
            if self.state is ResourceState.CLOSED:
                raise xa_error(Code.XAER_RMFAIL, f"{self.name} is closed")
            wait_s = self._retry_at - self._clock()
            if wait_s > 0 and not now:
                raise xa_error(Code.XAER_RMFAIL, f"{self.why} (next try in {max(wait_s, 0.1):.1f} s)")
            began = self._clock()
            try:
                self.rm.open(self.url, self.rmid)
                self.identity = self.rm.identity
            except Exception as raised:
                error = self._named(raised, "open", None)
                self._move(ResourceVerb.FAILED)
                self.why = error.message
                ended = self._clock()
                self._retry_at = ended + max(self._backoff_s, ended - began)
                self._backoff_s = min(self._backoff_s * 2, BACKOFF_LAST_S)
                raise error from raised

            self._lost.discard(control)
            self._move(ResourceVerb.OPENED)
            self._backoff_s = BACKOFF_FIRST_S
            self._retry_at = 0.0

    def starts_at_once(self) -> bool:
        """Whether a start of a new branch would wait for nothing now, as far as is known."""
        return not self.suspect and starts_at_once(self.rm) and self.rm.starts_at_once(self.rmid)

    def failed(self, error: XaError) -> None:
        """Takes what a verb raised: after XAER_RMFAIL the calling thread of control has to open it
        again."""
        if isinstance(error, ResourceUnavailable):
            self.lost(error.message)

    def lost(self, why: str) -> None:
        """The calling thread of control has to open it again before its next verb."""
        control = thread_of_control()
        with self._lock:
            # otherwise `why` says already why it can't be opened, or was lost, and `reopen` has added to that
            if self.state is ResourceState.OPEN and control not in self._lost:
                self.why = why
            self._lost.add(control)
            self.suspect = True

    def as_xa_error(self, raised: Exception, routine: str, xid: Xid | None = None) -> XaError:
        """The XaError for what `routine` raised, noted as `failed` does. After an exception that the contract does not
        name, nothing may be assumed about the call; so it becomes XAER_RMFAIL."""
        error = self._named(raised, routine, xid)
        self.failed(error)
        return error

    def _named(self, raised: Exception, routine: str, xid: Xid | None) -> XaError:
        if isinstance(raised, XaError):
            return raised
        about = f"{named(xid.gtrid)} (xid {xid})" if xid is not None else "no transaction"
        logger.error(
            "%s: %s of %s raised an error that its contract does not name", about, routine, self.name, exc_info=raised
        )
        return xa_error(Code.XAER_RMFAIL, f"{routine} raised {type(raised).__name__}: {raised}", xid)

    def break_off(self) -> None:
        """Breaks its connections, if that is possible, while other threads wait for them. No thread waits for new ones
        at once: they would be as slow."""
        if breaks_off(self.rm):
            self._retry_at = self._clock() + BROKEN_OFF_S  # without the lock: who opens it holds that, and may wait
            self.rm.break_off()

    def leave(self, why: str) -> None:
        """Leaves it to the parent, in a fork of the process that opened it; it is not opened again here."""
        self._lock = threading.Lock()
        self.state = advance(RESOURCE, self.state, ResourceVerb.CLOSE)
        self.suspect, self.why = True, why

    def close(self) -> None:
        """Closes the resource manager for good. An error is logged."""
        self.state = advance(RESOURCE, self.state, ResourceVerb.CLOSE)  # it is not opened again from here on
        try:
            self.rm.close("", self.rmid)
        except XaError as error:
            logger.warning("%s could not be closed: %s", self.name, error)
        except Exception:
            logger.exception("%s: close raised an error that its contract does not name", self.name)
        self.suspect = True
        self.why = self.state.value

    def _move(self, verb: ResourceVerb) -> None:
        self.state = advance(RESOURCE, self.state, verb)
        self.suspect = self.state is not ResourceState.OPEN or bool(self._lost)


def _system(url: str) -> str:
    """The kind of a broker, as the semantic conventions for messaging call it, or by the scheme of its URL."""
    scheme = url.partition("://")[0]
    if scheme.startswith("openwire"):
        return "activemq"
    return "amqp" if "amqp" in scheme else scheme
