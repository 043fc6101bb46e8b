"""Lake: a folder with Delta tables, and the branches that are prepared over them.

A branch appends Parquet files. A file is not seen before a table's log names it, so preparing a branch is to write down
durably which files it appends, and committing it is to name them: one version of each table.

    FOLDER/orders/, FOLDER/sales/orders/       tables, as every Delta library knows them
    FOLDER/_xabridge/
        id                                     names the lake in the logs of its tables
        lock                                   is held while manifests are listed, made or renamed
        work/GTRID/RANDOM/part-….parquet       files that no log names yet; GTRID in hexadecimal
        branches/SLOT~XID.STATE                manifests: JSON, with their version, and the files of the branch for
                                               each table

A manifest is written in full elsewhere, forced, and then renamed to its place; the rename is what happens:

    prepared       the branch is prepared. It can be committed and rolled back by any process
    committing     the transaction manager has said commit: no rollback any more. Its tables are being written
    committed      the same after a one-phase commit. It is not asked again: the next to open the lake completes it
    rolled-back    it is rolled back; its files are being removed

Every step after the rename can be repeated, by several processes at once, and is repeated until the manifest is gone:

 1. For each table: if the log has the branch's transaction identifier, its version is written. Otherwise the files are
    linked into the table's folder, and one version is written that names them and has the identifier. Delta's rules
    refuse a second version with the same identifier that was begun before the first one was there.
 2. The log is forced, because the library does not do that.
 3. The files in `work` are removed, and then the manifest.

The identifier is the lake's id and the branch's slot; its version is one more than the last one in the table's log. A
slot has one branch at a time, so its versions follow one another, and branches of other slots come in any order. The
tables' logs have as many identifiers as there ever were branches prepared at a time.

What is in `work` is hidden from VACUUM, which leaves folders alone whose names begin with an underscore, and the files
are linked, not moved, so that a commit that is held up for weeks still has them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from uuid import uuid4

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from rm_delta.errors import TableRefused, plain
from rm_delta.parquet_files import TableFiles, WrittenFile
from rm_delta.table import LIBRARY, TableDescription, describe, read_table
from xa import Xid
from xa.durable_files import force, make_folder, write_file
from xa.format_version import version_refusal
from xa.holdings import MAX_HOLDINGS, Holding, InDoubtBranch, Relation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

logger: Final = logging.getLogger("xabridge.rm_delta")

HOME: Final = "_xabridge"
VERSION: Final = 2
PREPARED: Final = "prepared"
COMMITTING: Final = "committing"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled-back"
ABANDONED_S: Final = 7 * 86400.0
"""Unfinished work that nothing has changed for so long is removed when the lake is opened."""
LOCK_S: Final = 30.0
"""How long the lock of a lake is waited for. It is held for milliseconds."""
_LOOK_AGAIN_S: Final = 0.005
TRIES: Final = 20
"""How often a version is tried to be written while others write the table."""


class LakeUnavailable(Exception):
    """The folder can't be used now. The message says what failed."""


class ManifestDamaged(OSError):
    """The manifest of a prepared branch can't be read, whatever it was that the disk did. The message says which."""


class ManifestOfOtherVersion(OSError):
    """Another version of xabridge has prepared the branch."""


class CompletionPostponed(Exception):
    """The branch can't be completed now, and is as it was. The message says why."""


class CommitBegun(Exception):
    """The commit of the branch has begun."""


@dataclass(frozen=True, slots=True)
class TableWork:
    """The files that a branch appends to one table, which was described so when they were written."""

    table: TableDescription
    files: tuple[WrittenFile, ...]


class Prepared(NamedTuple):
    """The contents of a manifest: the application, and what is appended to which table as which of its versions."""

    application: str
    tables: list[tuple[TableWork, int]]


class _Manifest(NamedTuple):
    """The name of a manifest."""

    slot: int
    xid: Xid
    state: str

    @property
    def name(self) -> str:
        return f"{self.slot}~{str(self.xid).replace('/', '.')}.{self.state}"

    @classmethod
    def read(cls, name: str) -> Self | None:
        """Reads it; None for a name of something else."""
        slot, tilde, rest = name.partition("~")
        text, _, state = rest.rpartition(".")
        if not tilde or not slot.isdecimal() or state not in {PREPARED, COMMITTING, COMMITTED, ROLLED_BACK}:
            return None
        with suppress(ValueError):
            return cls(int(slot), Xid.parse(text.replace(".", "/")), state)
        return None


class Lake:
    """One folder. Several processes, also on several hosts that share the folder, may use it at once."""

    def __init__(self, root: Path, lock_s: float = LOCK_S) -> None:
        self.root = root
        self._lock_s = lock_s
        self.work = root / HOME / "work"
        self._branches = root / HOME / "branches"
        self._lock = root / HOME / "lock"
        self.id = ""

    def open(self) -> None:
        """Makes the lake's own folders where they are missing, and completes what other processes have left.
        LakeUnavailable: the folder can't be used; of a ManifestOfOtherVersion: nothing was changed. ForkedProcess."""
        LIBRARY.check()
        with _available(f"the lake {self.root} can't be used"):
            if not self.root.is_dir():
                raise LakeUnavailable(f"there is no folder {self.root}: make it before, or mount it")
            self._check_versions()
            for folder in (self.work, self._branches):
                make_folder(folder)
            self._lock.touch()
            self.id = self._identity()
            self._remove_abandoned()
        self.tidy()

    def _check_versions(self) -> None:
        with suppress(FileNotFoundError):  # there are no branches yet
            for manifest in self._manifests():
                path = self._branches / manifest.name
                with suppress(FileNotFoundError, ManifestDamaged):  # it is completed, or can't be when its turn comes
                    read_manifest(path.read_bytes(), path)

    def _identity(self) -> str:
        """The lake's id, which the first process that opens the lake gives it. It is linked to its place, because files
        are linked at each commit: a file system that has no hard links is found out here."""
        path = self.root / HOME / "id"
        if not path.exists():
            mine = path.with_name(f"id-{uuid4()}")
            write_file(mine, uuid4().hex.encode("ascii"))
            with suppress(FileExistsError):
                os.link(mine, path)
            mine.unlink()
            force(path.parent)
        return path.read_text("ascii")

    # --- before the vote --------------------------------------------------------------------------------------
    def files(self, gtrid: bytes, folder: str, table: str) -> TableFiles:
        """Writes files for a table, into a folder of the global transaction. TableRefused, OSError."""
        return TableFiles(self.root, self.work, f"{gtrid.hex()}/{folder}", table)

    def remove(self, gtrid: bytes, folder: str) -> None:
        """Removes the files of a branch, or an attempt, that won't be prepared."""
        shutil.rmtree(self.work / gtrid.hex() / folder, ignore_errors=True)
        with suppress(OSError):  # others have work for this global transaction
            (self.work / gtrid.hex()).rmdir()

    def remove_where(self, is_old: Callable[[bytes], bool]) -> None:
        """Removes the unfinished work of global transactions for which the function says so, and of which no branch is
        prepared."""
        with _available("unfinished work can't be removed"):
            with self._locked():
                kept = {manifest.xid.gtrid for manifest in self._manifests()}
            for folder in self.work.iterdir():
                gtrid = _octets(folder.name)
                if gtrid is not None and gtrid not in kept and is_old(gtrid):
                    shutil.rmtree(folder, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        newest = time.time() - ABANDONED_S

        def is_old(gtrid: bytes) -> bool:
            folder = self.work / gtrid.hex()
            with suppress(FileNotFoundError):
                return all(path.stat().st_mtime < newest for path in (folder, *folder.rglob("*")))
            return False

        self.remove_where(is_old)
        for unfinished in (self.root / HOME).glob("manifest-*"):
            with suppress(FileNotFoundError):
                if unfinished.stat().st_mtime < newest:
                    unfinished.unlink()

    # --- the vote ---------------------------------------------------------------------------------------------
    def prepare(self, xid: Xid, tables: Sequence[TableWork], *, one_phase: bool = False) -> bool:
        """Prepares the branch, or with `one_phase` commits it. False: the xid is in use. TableRefused: it can't be
        prepared, and nothing was done. LakeUnavailable: it is not known whether it is prepared."""
        new = self.root / HOME / f"manifest-{uuid4()}"
        with _available("it is not known whether the branch is prepared"), self._locked():
            try:
                manifest = self._written(new, xid, tables, COMMITTED if one_phase else PREPARED)
            except (OSError, DeltaError) as error:  # for instance because the disk is full
                with suppress(OSError):
                    new.unlink(missing_ok=True)
                raise TableRefused(f"the branch can't be written down: {plain(error)}") from error
            if manifest is None:
                return False
            new.rename(self._branches / manifest.name)
            force(self._branches)  # the branch is prepared from here on, or committed in one phase
        if one_phase:
            self.tidy()
        return True

    def _written(self, path: Path, xid: Xid, tables: Sequence[TableWork], state: str) -> _Manifest | None:
        """Writes a manifest, with a slot that no other branch has. None: the xid is in use."""
        known = list(self._manifests())
        if any(one.xid == xid for one in known):
            return None

        for work in tables:
            for file in work.files:
                if not self._is_whole(self.work / file.path, file):
                    raise TableRefused(f"{work.table.name}: the file {file.path} is missing")
        slots = {one.slot for one in known}
        slot = next(number for number in range(len(slots) + 1) if number not in slots)
        application = f"xabridge-{self.id}-{slot}"
        by_name: dict[str, list[TableWork]] = {}
        for work in tables:
            by_name.setdefault(work.table.name, []).append(work)
        stored = {
            "version": VERSION,
            "xid": str(xid),
            "application": application,
            "appends": [self._stored(name, works, application) for name, works in by_name.items()],
        }
        write_file(path, json.dumps(stored).encode("utf-8"))
        return _Manifest(slot, xid, state)

    def _stored(self, name: str, works: Sequence[TableWork], application: str) -> dict[str, Any]:
        """What a manifest says of a table. It is as it is now; some of the files may have been written before it got
        its newest column. TableRefused: they can't be appended to it."""
        now, last = read_table(
            self.root, name, lambda table: (describe(name, table), table.transaction_version(application) or 0)
        )
        for work in works:
            work.table.check_unchanged(now)
        return {
            "table": name,
            "id": now.id,
            "schema": now.schema,
            "partitions": list(now.partitions),
            "number": last + 1,
            "files": [file.as_json() for work in works for file in work.files],
        }

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Inside, no other process makes, renames or lists manifests. (A file that is renamed while a folder is being
        listed may be missing in the list.)"""
        with self._lock.open("rb") as file:
            self._take(file.fileno())
            yield

    def _take(self, lock: int) -> None:
        """Takes the lock; LakeUnavailable: its holder does not let go."""
        until = time.monotonic() + self._lock_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise LakeUnavailable(
                        f"another process has held the lock {self._lock} for {self._lock_s:g} s: is it stopped, or its "
                        "disk?"
                    ) from None
                time.sleep(_LOOK_AGAIN_S)
            else:
                return

    @staticmethod
    def _is_whole(path: Path, file: WrittenFile) -> bool:
        with suppress(FileNotFoundError):
            return path.stat().st_size == file.size
        return False

    # --- afterwards -------------------------------------------------------------------------------------------
    def prepared(self) -> list[Xid]:
        """The branches that are prepared, or that are being committed. LakeUnavailable."""
        with _available("the prepared branches can't be read"), self._locked():
            return [one.xid for one in self._manifests() if one.state in {PREPARED, COMMITTING}]

    def in_doubt(self) -> list[InDoubtBranch]:
        """The same branches, with the rows that they append. LakeUnavailable."""
        with _available("the prepared branches can't be read"), self._locked():
            return [
                self._report(manifest) for manifest in self._manifests() if manifest.state in {PREPARED, COMMITTING}
            ]

    def _report(self, manifest: _Manifest) -> InDoubtBranch:
        path = self._branches / manifest.name
        tables = [work for work, _ in read_manifest(path.read_bytes(), path).tables]
        holdings = [
            Holding(Relation.TO, work.table.name, "row", sum(file.rows for file in work.files)) for work in tables
        ]
        return InDoubtBranch(
            manifest.xid,
            max(0.0, time.time() - path.stat().st_mtime),
            holdings=tuple(holdings[:MAX_HOLDINGS]),
            omitted=max(len(holdings) - MAX_HOLDINGS, 0),
        )

    def commit(self, xid: Xid) -> bool:
        """Commits a prepared branch. False: there is none. CompletionPostponed: it can't be committed now.
        LakeUnavailable."""
        with _available("the branch can't be committed"):
            with self._locked():
                manifest = self._find(xid)
                if manifest is None or manifest.state not in {PREPARED, COMMITTING}:
                    return False
                manifest = self._moved(manifest, COMMITTING)
            try:
                self._complete(manifest)
            except (TableRefused, DeltaError) as error:
                raise CompletionPostponed(plain(error)) from error
        return True

    def rollback(self, xid: Xid) -> bool:
        """Rolls a prepared branch back. False: there is none. CommitBegun: its commit has begun. LakeUnavailable."""
        with _available("the branch can't be rolled back"):
            with self._locked():
                manifest = self._find(xid)
                if manifest is None or manifest.state in {COMMITTED, ROLLED_BACK}:
                    return False
                if manifest.state == COMMITTING:
                    raise CommitBegun("its commit has begun")
                manifest = self._moved(manifest, ROLLED_BACK)
            self._complete(manifest)
        return True

    def tidy(self) -> None:
        """Completes branches that no manager will complete any more. What can't be completed now is logged, and left
        for the next time."""
        with suppress(OSError):
            for manifest in self._manifests():
                if manifest.state in {COMMITTED, ROLLED_BACK}:
                    try:
                        self._complete(manifest)
                    except (TableRefused, DeltaError, OSError) as error:
                        logger.warning(
                            "%s is %s, and can't be completed now: %s", manifest.xid, manifest.state, plain(error)
                        )

    def _manifests(self) -> Iterator[_Manifest]:
        for name in sorted(os.listdir(self._branches)):  # noqa: PTH208 — names alone
            manifest = _Manifest.read(name)
            if manifest is not None:
                yield manifest

    def _find(self, xid: Xid) -> _Manifest | None:
        return next((one for one in self._manifests() if one.xid == xid), None)

    def _moved(self, manifest: _Manifest, state: str) -> _Manifest:
        """The manifest in its new state, durably."""
        after = manifest._replace(state=state)
        if after != manifest:
            (self._branches / manifest.name).rename(self._branches / after.name)
            force(self._branches)
        return after

    def _complete(self, manifest: _Manifest) -> None:
        """Carries out what the state says, and removes the manifest. It may have been carried out before, in part or
        as a whole, and be carried out by another process now. TableRefused, DeltaError, OSError."""
        path = self._branches / manifest.name
        try:
            stored = read_manifest(path.read_bytes(), path)
        except FileNotFoundError:
            return
        tables = stored.tables
        if manifest.state != ROLLED_BACK:
            for work, number in tables:
                self._append(work, stored.application, number, manifest.xid)
        for folder in {file.path.rpartition("/")[0] for work, _ in tables for file in work.files}:
            self.remove(manifest.xid.gtrid, folder.partition("/")[2])
        path.unlink(missing_ok=True)
        force(self._branches)

    def _append(self, work: TableWork, application: str, number: int, xid: Xid) -> None:
        """Writes the version that names the files, unless it is written."""
        name = work.table.name
        log = self.root / name / "_delta_log"
        for left in reversed(range(TRIES)):
            table, now, last = read_table(
                self.root, name, lambda one: (one, describe(name, one), one.transaction_version(application) or 0)
            )
            first = table.version() + 1
            if now.id == work.table.id and last >= number:
                os.sync()  # its writer may have died before the log was forced
                return
            work.table.check_unchanged(now)
            self._link(work)
            try:
                _write_version(table, work, application, number, xid)
            except DeltaError as error:
                if not left:
                    raise
                logger.info("%s: another writer was faster, and the version is written again: %s", name, plain(error))
                time.sleep(0.01 * (TRIES - left))
                continue

            for version in range(first, read_table(self.root, name, DeltaTable.version) + 1):
                with suppress(FileNotFoundError):
                    force(log / f"{version:020}.json")
            force(log)
            return

    def _link(self, work: TableWork) -> None:
        """The files are in the table's folder. They look new, so that VACUUM leaves them alone until they are named."""
        folder = self.root / work.table.name
        for file in work.files:
            source, target = self.work / file.path, folder / file.name
            with suppress(
                FileNotFoundError, FileExistsError
            ):  # another process has done it, and may be done altogether
                os.utime(source)
                os.link(source, target)
            if not self._is_whole(target, file):
                raise TableRefused(f"{work.table.name}: the file {source} is missing: restore it from a backup")
        force(folder)


def read_manifest(octets: bytes, path: object = "a manifest") -> Prepared:
    """What the manifest of a prepared branch says. ManifestDamaged: it is none. ManifestOfOtherVersion.

    Version 1 has no version, and calls the tables otherwise, so that it can't read a manifest of this one."""
    try:
        stored = json.loads(octets)
        version = stored.get("version")
        refusal = version_refusal(path, None if version is None else int(version), VERSION)
        if refusal is not None:
            raise ManifestOfOtherVersion(refusal)
        tables = [(_work_of(one), int(one["number"])) for one in stored["appends"]]
        return Prepared(str(stored["application"]), tables)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ManifestDamaged(
            f"{path} can't be read ({error!r}): it says which files a prepared branch appends; restore it from a backup"
        ) from error


def _work_of(stored: Mapping[str, Any]) -> TableWork:
    table = TableDescription(stored["table"], stored["id"], stored["schema"], tuple(stored["partitions"]))
    return TableWork(table, tuple(map(WrittenFile.from_json, stored["files"])))


def _write_version(table: DeltaTable, work: TableWork, application: str, number: int, xid: Xid) -> None:
    now_ms = int(time.time() * 1000)
    actions = [
        AddAction(file.name, file.size, dict(file.partition), now_ms, data_change=True, stats=file.stats)
        for file in work.files
    ]
    table.create_write_transaction(
        actions,  # type: ignore[arg-type]  # a list of either kind of action
        "append",
        table.schema(),
        list(work.table.partitions),
        commit_properties=CommitProperties(
            custom_metadata={"xid": str(xid)}, app_transactions=[Transaction(application, number)]
        ),
    )


@contextmanager
def _available(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LakeUnavailable(f"{what}: {error}") from error


def _octets(name: str) -> bytes | None:
    """The gtrid that is the name of a folder; None: it is none."""
    with suppress(ValueError):
        return bytes.fromhex(name)
    return None
