"""The reference resource manager served to other processes, for tests that kill processes: the stores outlive them.

`ReferenceServer` answers on a socket of this machine, in threads of the calling process. `RemoteReference` is the
client, an `xa.ResourceManager` that forwards every verb; each of its threads has a connection of its own. When the last
connection of a process breaks, the store loses what that process had associated, and also every unprepared branch that
no other process has worked on.

It keeps to `xa.ResourceManager` as far as such tests need it: opening and closing are synchronous, a session checks
nothing before its first operation, and where a process has several connections, a broken one costs only the call that
was on it. Messages are pickled, between processes of one user only: the socket lies in a folder of that user's, and the
listener authenticates.
"""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any, Final

from xa.codes import Code
from xa.diagnosis import Check, Diagnosis, Health
from xa.errors import ResourceUnavailable, XaError, xa_error
from xa.flags import TMASYNC, TMUSEASYNC
from xa.threads_of_control import ThreadOfControl, entered, thread_of_control
from xabridge.testing.reference.driver import ReferenceResource
from xabridge.testing.reference.server import KeyLocked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xa.holdings import InDoubtBranch
    from xa.resource_manager import Completion, Handle, Registrar
    from xa.xid import Xid
    from xabridge.testing.reference.store import ReferenceStore

_LOST: Final = (EOFError, OSError)
_COMPLETES: Final = frozenset({"end", "prepare", "commit", "rollback", "forget"})
"""Verbs after which a branch may be there no more."""


@dataclass(slots=True)
class _Process:
    """A client as the server knows it. `started` are the branches that it began or joined, and that may be there."""

    resource: ReferenceResource
    controls: dict[int, ThreadOfControl] = field(default_factory=dict)
    started: set[Xid] = field(default_factory=set)
    connections: int = 0


class ReferenceServer:
    """Serves `stores`, by name, at the socket `address` until `close`."""

    def __init__(self, stores: Mapping[str, ReferenceStore], address: str, authkey: bytes) -> None:
        self._stores = stores
        self._processes: dict[tuple[str, str], _Process] = {}
        self._lock = threading.Lock()
        self._listener = Listener(address, authkey=authkey)
        self._closed = False
        threading.Thread(target=self._accept, name="reference-server", daemon=True).start()

    def close(self) -> None:
        """Takes no more connections."""
        self._closed = True
        self._listener.close()

    @property
    def connected(self) -> int:
        """How many clients are connected; whatever the others had sent has had its effect, and so has their end."""
        with self._lock:
            return len(self._processes)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except (*_LOST, AuthenticationError):
                continue  # a client that died while it connected or has another key, or the end
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        key: tuple[str, str] | None = None
        try:
            key = connection.recv()
            process = self._joined(key)
            while True:
                control_id, name, arguments = connection.recv()
                with self._lock:
                    control = process.controls.setdefault(control_id, ThreadOfControl())
                    if name == "start":
                        process.started.add(arguments[0])

                with entered(control):
                    answer = self._answer(process.resource, key[0], name, arguments)
                if name in _COMPLETES and arguments[0] not in self._stores[key[0]].known:
                    with self._lock:
                        process.started.discard(arguments[0])
                connection.send(answer)
        except _LOST:
            pass
        finally:
            connection.close()
            if key is not None:
                self._left(key)

    def _joined(self, key: tuple[str, str]) -> _Process:
        with self._lock:
            if key not in self._processes:
                self._processes[key] = _Process(ReferenceResource(self._stores[key[0]]))
            self._processes[key].connections += 1
            return self._processes[key]

    def _left(self, key: tuple[str, str]) -> None:
        with self._lock:
            process = self._processes[key]
            process.connections -= 1
            if process.connections:
                return
            del self._processes[key]
            others = (other.started for (store, _), other in self._processes.items() if store == key[0])
            alone = process.started.difference(*others)
            self._stores[key[0]].disconnect(process.resource, alone)  # here: no process joins one of them meanwhile

    def _answer(self, resource: ReferenceResource, store: str, name: str, arguments: tuple[Any, ...]) -> object:
        try:
            if name.startswith("session."):
                return getattr(resource.session(arguments[0]), name.removeprefix("session."))(*arguments[1:])
            if name == "data":
                return self._stores[store].data
            return getattr(resource, name)(*arguments)
        except (XaError, KeyLocked) as error:
            return error


class RemoteReference:
    """The client, for the store `store` served at `address`."""

    name = "xabridge remote reference"
    flags = TMUSEASYNC

    _numbers = itertools.count(1)

    def __init__(self, address: str, authkey: bytes, store: str, registrar: Registrar | None = None) -> None:
        del registrar  # it does not register dynamically
        self._address = address
        self._authkey = authkey
        self._key = (store, f"{os.getpid()}-{next(self._numbers)}")
        self._local = threading.local()

    @property
    def identity(self) -> str:
        return f"reference://{self._key[0]}"

    def ask(self, name: str, *arguments: Any) -> Any:
        """The server's answer to one request; an XaError or KeyLocked is raised."""
        control = thread_of_control()
        connection = self._connection()
        try:
            connection.send((id(control), name, arguments))
            answer = connection.recv()
        except _LOST as error:
            self._local.connection = None
            raise xa_error(Code.XAER_RMFAIL, f"{name}: the connection to {self._key[0]} was lost") from error
        if isinstance(answer, (XaError, KeyLocked)):
            raise answer
        return answer

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            try:
                connection = Client(self._address, authkey=self._authkey)
                connection.send(self._key)
            except _LOST as error:
                raise xa_error(Code.XAER_RMFAIL, f"{self._key[0]} can't be reached at {self._address}") from error
            self._local.connection = connection
        return connection

    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code:
        code: Code = self.ask("open", open_string, rmid, flags & ~TMASYNC)
        return code

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Code:
        code: Code = self.ask("close", close_string, rmid, flags & ~TMASYNC)
        return code

    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._verb("start", xid, rmid, flags)

    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        return self._verb("end", xid, rmid, flags)

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._verb("prepare", xid, rmid, flags)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._verb("commit", xid, rmid, flags)

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._verb("rollback", xid, rmid, flags)

    def forget(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._verb("forget", xid, rmid, flags)

    def recover(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[Xid]:
        xids: Sequence[Xid] = self.ask("recover", rmid, flags, count)
        return xids

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        branches: Sequence[InDoubtBranch] = self.ask("in_doubt", rmid, flags, count)
        return branches

    def diagnose(self, open_string: str) -> Diagnosis:
        try:
            diagnosis: Diagnosis = self.ask("diagnose", open_string)
        except ResourceUnavailable as error:
            return Diagnosis((Check(Health.FAIL, "reachable", error.message, "start the process that serves it"),))
        return diagnosis

    def complete(self, handle: Handle | None, rmid: int, flags: int = 0) -> Completion:
        completion: Completion = self.ask("complete", handle, rmid, flags)
        return completion

    def session(self, rmid: int) -> RemoteSession:
        return RemoteSession(self, rmid)

    def _verb(self, name: str, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        answer: Code | Handle = self.ask(name, xid, rmid, flags)
        return answer


class RemoteSession:
    """The native interface, as `ReferenceSession` has it."""

    __slots__ = ("_remote", "_rmid")

    def __init__(self, remote: RemoteReference, rmid: int) -> None:
        self._remote = remote
        self._rmid = rmid

    def read(self, key: str) -> Any:
        """The value that this branch wrote, else the committed one, else None."""
        return self._remote.ask("session.read", self._rmid, key)

    def write(self, key: str, value: Any) -> None:
        """Writes, under the thread's branch."""
        self._remote.ask("session.write", self._rmid, key, value)

    def append(self, key: str, item: Any) -> None:
        """Writes the tuple at `key` with `item` behind it."""
        self._remote.ask("session.append", self._rmid, key, item)
