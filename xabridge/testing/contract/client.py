"""Client: a resource manager as the suite speaks to it, and the small things that all its tests need."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import pytest

from xa import (
    EXCEPTIONS,
    NULL_XID,
    ROLLBACK_CODES,
    TMASYNC,
    TMENDRSCAN,
    TMJOIN,
    TMNOFLAGS,
    TMREGISTER,
    TMRESUME,
    TMSTARTRSCAN,
    TMSUCCESS,
    AxCode,
    Code,
    Handle,
    ResourceUnavailable,
    ThreadOfControl,
    XaError,
    Xid,
    entered,
    thread_of_control,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xa import ResourceManager

    from .harness import Harness

RMID: Final = 7
FORMAT_ID: Final = 0x7465
ROLLED_BACK: Final = ROLLBACK_CODES | {Code.XAER_NOTA}
"""The answers of prepare for work that was lost: it says so, or knows nothing of it any more."""
NOT_JOINED: Final = frozenset({Code.XAER_NOTA, Code.XAER_PROTO, Code.XAER_RMERR})
"""How a join is refused that the resource manager can't make; no association is made."""
_NUMBERS: Final = count(1)
_RUN: Final = f"{os.getpid()}.{time.time_ns()}"


def new_xid(bqual: bytes = b"b") -> Xid:
    """An xid that no other test has, in this run or another, on a resource that outlives them."""
    return Xid(FORMAT_ID, f"contract {_RUN} {next(_NUMBERS)}".encode(), bqual)


def new_key() -> str:
    """A key that no other test writes."""
    return f"key {_RUN} {next(_NUMBERS)}"


@contextmanager
def refused(*codes: Code) -> Iterator[pytest.ExceptionInfo[XaError]]:
    """Inside the block one of `codes` is raised, as the class of exception that belongs to it."""
    with pytest.raises(XaError) as raised:
        yield raised
    error = raised.value
    assert error.code in codes, f"{error} instead of {', '.join(code.name for code in codes)}"
    assert type(error) is EXCEPTIONS[error.code]


@contextmanager
def case(*what: object) -> Iterator[None]:
    """For a test that goes through many cases: what goes wrong inside says in which case it did."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(str, what))}")
        raise


class ScriptedRegistrar:
    """The transaction manager's side of dynamic registration: answers what the test wants, per thread of control,
    and keeps the calls."""

    def __init__(self) -> None:
        self._answers: WeakKeyDictionary[ThreadOfControl, tuple[AxCode, Xid]] = WeakKeyDictionary()
        self.unreg_answer = AxCode.TM_OK
        self.calls: list[tuple[str, int, int]] = []

    @property
    def answer(self) -> tuple[AxCode, Xid]:
        """The answer to the calling thread of control; outside of any transaction, unless set."""
        return self._answers.get(thread_of_control(), (AxCode.TM_OK, NULL_XID))

    @answer.setter
    def answer(self, answer: tuple[AxCode, Xid]) -> None:
        self._answers[thread_of_control()] = answer

    def ax_reg(self, rmid: int, flags: int = TMNOFLAGS) -> tuple[AxCode, Xid]:
        self.calls.append(("ax_reg", rmid, flags))
        return self.answer

    def ax_unreg(self, rmid: int, flags: int = TMNOFLAGS) -> AxCode:
        self.calls.append(("ax_unreg", rmid, flags))
        return self.unreg_answer


_REGISTRATION: Final = {TMNOFLAGS: AxCode.TM_OK, TMJOIN: AxCode.TM_JOIN, TMRESUME: AxCode.TM_RESUME}


class Client:
    """One client of the resource under test, opened as RMID unless a test wants otherwise."""

    def __init__(self, harness: Harness, *, opened: bool = True) -> None:
        self.harness = harness
        self.registrar = ScriptedRegistrar()
        self.rm: ResourceManager = harness.new(self.registrar)
        self.registers = bool(self.rm.flags & TMREGISTER)
        if opened:
            assert self.open() is Code.XA_OK

    def open(self) -> Code:
        """Opens it."""
        return plain(self.rm.open(self.harness.open_string, RMID))

    def reopen(self) -> None:
        """Opens again, as a thread of control does after XAER_RMFAIL, or to be sure."""
        assert self.open() is Code.XA_OK

    def start(self, xid: Xid, flags: int = TMNOFLAGS) -> None:
        """Associates the calling thread of control: by xa_start, or by work that makes the resource manager register
        itself."""
        if self.registers:
            self.registrar.answer = (_REGISTRATION[flags], xid)
            self.harness.read(self.rm, RMID)
        else:
            assert self.rm.start(xid, RMID, flags) is Code.XA_OK

    def end(self, xid: Xid, flags: int = TMSUCCESS) -> Code:
        """xa_end."""
        return plain(self.rm.end(xid, RMID, flags))

    def prepare(self, xid: Xid) -> Code:
        """xa_prepare."""
        return plain(self.rm.prepare(xid, RMID))

    def commit(self, xid: Xid, flags: int = TMNOFLAGS) -> Code:
        """xa_commit."""
        return plain(self.rm.commit(xid, RMID, flags))

    def rollback(self, xid: Xid) -> Code:
        """xa_rollback."""
        return plain(self.rm.rollback(xid, RMID))

    def forget(self, xid: Xid) -> Code:
        """xa_forget."""
        return plain(self.rm.forget(xid, RMID))

    def write(self, key: str) -> None:
        """Undoable work."""
        self.harness.write(self.rm, RMID, key)

    def in_doubt(self) -> set[Xid]:
        """A whole recovery scan, in pages."""
        found: list[Xid] = []
        flags = TMSTARTRSCAN
        while True:
            page = self.rm.recover(RMID, flags, 100)
            found += page
            if len(page) < 100:
                break
            flags = TMNOFLAGS
        self.rm.recover(RMID, TMENDRSCAN, 1)
        assert len(found) == len(set(found))
        return set(found)

    def begun(self, key: str, xid: Xid | None = None) -> Xid:
        """An active branch that has written `key`."""
        xid = xid or new_xid()
        self.start(xid)
        self.write(key)
        return xid

    def ended(self, key: str, xid: Xid | None = None) -> Xid:
        """An idle branch that has written `key`."""
        xid = self.begun(key, xid)
        assert self.end(xid) is Code.XA_OK
        return xid

    def prepared(self, key: str, xid: Xid | None = None) -> Xid:
        """A prepared branch that has written `key`."""
        xid = self.ended(key, xid)
        assert self.prepare(xid) is Code.XA_OK
        return xid

    def send(self, verb: str, xid: Xid, flags: int = TMNOFLAGS) -> Handle:
        """A verb with TMASYNC."""
        handle = getattr(self.rm, verb)(xid, RMID, flags | TMASYNC)
        assert isinstance(handle, Handle)
        assert handle > 0
        return handle

    def wait(self, handle: Handle) -> Code:
        """The code that an operation came to."""
        completion = self.rm.complete(handle, RMID)
        assert completion.handle == handle
        if completion.error is not None:
            assert completion.error.code is completion.code
            assert type(completion.error) is EXCEPTIONS[completion.code]
        else:
            assert completion.code not in EXCEPTIONS
        return completion.code

    def retrying(self, verb: str, xid: Xid) -> Code:
        """A verb of completion, by a caller that opens again after XAER_RMFAIL; the code, raised or not."""
        for _ in range(3):
            try:
                return plain(getattr(self.rm, verb)(xid, RMID))
            except ResourceUnavailable:
                self.reopen()
            except XaError as error:
                return error.code
        raise AssertionError(f"{verb} did not come through on a resource that can be reached")


def plain(answer: Code | Handle) -> Code:
    """The answer of a call without TMASYNC."""
    assert isinstance(answer, Code)
    return answer


class Contract:
    """The base of the suite's parts: the fixtures `harness` (the user's) and `client`."""

    @pytest.fixture
    def client(self, harness: Harness) -> Iterator[Client]:
        """A client, closed and seen to have left nothing behind."""
        client = Client(harness)
        yield client
        client.rm.close("", RMID)
        assert harness.leaks() == []


def elsewhere() -> Any:
    """Inside the block, another thread of control acts."""
    return entered(ThreadOfControl())
