"""DeltaResource: the Delta Lake tables in one folder as a resource manager.

`xa.switch` and `xa.in_process_branches` carry out the XA verbs. What is Delta's own is in `rm_delta.lake`, which
prepares, commits and lists branches, and in `rm_delta.session`, which writes files until then.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import uuid4

from rm_delta import NAME
from rm_delta.errors import ForkedProcess, TableRefused
from rm_delta.lake import CommitBegun, CompletionPostponed, Lake, LakeUnavailable, ManifestOfOtherVersion
from rm_delta.session import BranchWork, DeltaSession
from xa import Code, xa_error
from xa.in_process_branches import AssociatedWork, Branches, UnitOfWork, UnitOfWorkDriver
from xa.open_string import OpenString
from xa.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xa import Registrar, Xid
    from xa.driver import Pending
    from xa.holdings import InDoubtBranch


class DeltaUnitOfWork(UnitOfWork):
    """The work of one branch that is not prepared: files that it has written."""

    def __init__(self, driver: DeltaDriver, xid: Xid) -> None:
        self._driver = driver
        self._xid = xid
        self._work = BranchWork(driver.opened, xid, uuid4().hex)
        self._session: DeltaSession | None = None

    def session(self, context: object) -> DeltaSession:
        del context
        if self._session is None:
            self._session = DeltaSession(self._work)
        return self._session

    def end(self, *, fail: bool) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
        _ = self._driver.opened
        if not fail:
            try:
                self._work.finish()
            except OSError as error:
                raise xa_error(Code.XA_RBOTHER, f"end: the rows can't be written: {error}", self._xid) from error

    def prepare(self, *, later: bool) -> Code:
        del later
        return self._vote("prepare", one_phase=False)

    def commit(self, *, later: bool) -> Code:
        del later
        self._vote("commit", one_phase=True)
        return Code.XA_OK

    def _vote(self, verb: str, *, one_phase: bool) -> Code:
        lake, tables = self._driver.opened, self._work.tables()
        if not tables:
            self._work.remove()
            return Code.XA_RDONLY
        try:
            if lake.prepare(self._xid, tables, one_phase=one_phase):
                return Code.XA_OK
        except TableRefused as error:
            self._work.remove()
            raise xa_error(Code.XA_RBOTHER, f"{verb}: {error}", self._xid) from error
        except LakeUnavailable as error:  # prepared or not: the lake's folder tells, when it can be read again
            raise xa_error(Code.XAER_RMFAIL, f"{verb}: {error}", self._xid) from error
        self._work.remove()
        raise xa_error(Code.XA_RBPROTO, f"{verb}: this xid is prepared already", self._xid)

    def rollback(self, *, later: bool) -> Code:
        del later
        self._work.remove()
        return Code.XA_OK

    def abandon(self) -> None:
        """Leaves the files: what was asked may have been done, and they may belong to a prepared branch."""


class DeltaDriver(UnitOfWorkDriver[DeltaUnitOfWork]):
    """One folder, behind `xa.switch.Switch`."""

    name = NAME

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        self.lake: Lake | None = None
        self._url = ""

    drop = start_over

    def open(self, open_string: str) -> None:
        if self.lake is not None and open_string != self._url:
            raise xa_error(Code.XAER_INVAL, "open: was opened with another open string; close it first")
        lake = Lake(lake_folder(open_string))
        try:
            lake.open()
        except LakeUnavailable as error:
            other = isinstance(error.__cause__, ManifestOfOtherVersion)
            raise xa_error(Code.XAER_RMERR if other else Code.XAER_RMFAIL, f"open: {error}") from error
        except ForkedProcess as error:
            raise xa_error(Code.XAER_PROTO, f"open: {error}") from error
        self.lake, self._url = lake, open_string

    def close(self) -> None:
        self.start_over()

    @property
    def opened(self) -> Lake:
        """The lake; XAER_RMFAIL unless it is open."""
        if self.lake is None:
            raise xa_error(Code.XAER_RMFAIL, "the lake is not open")
        return self.lake

    def begins_at_once(self) -> bool:
        return True

    def begin(self, xid: Xid, *, wait: bool) -> DeltaUnitOfWork:
        del wait
        return DeltaUnitOfWork(self, xid)

    def commit_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        del later
        with _answers("commit", xid):
            if self.opened.commit(xid):
                return Code.XA_OK
        raise xa_error(Code.XAER_NOTA, "commit: nothing is prepared under this xid", xid)

    def rollback_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        del later
        with _answers("rollback", xid):
            if self.opened.rollback(xid):
                return Code.XA_OK
        raise xa_error(Code.XAER_NOTA, "rollback: nothing is prepared under this xid", xid)

    def forget(self, xid: Xid, *, later: bool) -> Code | Pending:
        with _answers("forget", xid):
            if xid in self.opened.prepared():
                raise xa_error(Code.XAER_PROTO, "forget: the branch is prepared, not heuristically completed", xid)
        return super().forget(xid, later=later)

    def scan(self, page: int) -> Iterator[Xid]:
        del page
        with _answers("recover", None):
            lake = self.opened
            lake.tidy()
            return iter(lake.prepared())

    def reports(self, page: int) -> Iterator[InDoubtBranch]:
        """The same branches, with what they hold."""
        del page
        with _answers("in_doubt", None):
            return iter(self.opened.in_doubt())


class DeltaResource(Switch[AssociatedWork[DeltaUnitOfWork]]):
    """The tables in one folder. Open string: `delta:///srv/lake`."""

    def __init__(self, registrar: Registrar | None = None) -> None:
        self._delta = DeltaDriver()
        super().__init__(Branches(self._delta), registrar)

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        return self.page("in_doubt", self._delta.reports, rmid, flags, count)

    @property
    def lake(self) -> Lake:
        """The folder, for files that are written apart from a branch. XAER_RMFAIL: it is not open."""
        return self._delta.opened


def lake_folder(open_string: str) -> Path:
    """The folder that an open string names. XAER_INVAL."""
    try:
        found = OpenString.parse(open_string)
    except ValueError as error:
        raise xa_error(Code.XAER_INVAL, f"open: {error}") from None
    path = unquote(found.path)
    if found.scheme != "delta" or found.user or found.place or found.options or "#" in found.path or not path:
        raise xa_error(
            Code.XAER_INVAL,
            f"open: {found} is not the URL of a folder: write delta:///srv/lake, with three slashes",
        )
    return Path(os.path.normpath(path))


@contextmanager
def _answers(verb: str, xid: Xid | None) -> Iterator[None]:
    try:
        yield
    except CompletionPostponed as error:
        raise xa_error(Code.XA_RETRY, f"{verb}: {error}", xid) from error
    except CommitBegun as error:
        raise xa_error(Code.XAER_PROTO, f"{verb}: {error}", xid) from error
    except LakeUnavailable as error:
        raise xa_error(Code.XAER_RMFAIL, f"{verb}: {error}", xid) from error
