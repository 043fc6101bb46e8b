"""The reference resource manager served to other processes: its stores outlive them, whatever kills them.

`ReferenceServer` answers on a socket of this machine, in threads of the calling process; `RemoteReference` is
the client. Each thread of the client has a connection of its own. When the last of a process's connections
breaks, the store loses what that process had associated. It serves the demo and tests that kill processes, and
keeps to `xa.ResourceManager` as far as those need it: opening and closing are synchronous, a session checks
nothing before its first operation, and one broken connection of several costs only the call that was on it.
Messages are pickled, between processes of one user only: the socket lies in a folder of that user's, and the
listener authenticates.
"""

from __future__ import annotations

import itertools
import os
import threading
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any, Final

from xa.codes import Code
from xa.control import ThreadOfControl, entered, thread_of_control
from xa.diagnosis import Check, Diagnosis, Health
from xa.errors import ResourceUnavailable, XaError, xa_error
from xa.flags import TMASYNC, TMUSEASYNC
from xa.reference.resource import ReferenceResource
from xa.reference.server import KeyLocked
from xa.tables import BranchState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xa.holdings import InDoubtBranch
    from xa.reference.store import ReferenceStore
    from xa.resource import Completion, Handle, Registrar
    from xa.xid import Xid

_LOST: Final = (EOFError, OSError)


class ReferenceServer:
    """Serves `stores`, by name, at the socket `address` until `close`."""

    def __init__(self, stores: Mapping[str, ReferenceStore], address: str, authkey: bytes) -> None:
        self._stores = stores
        self._clients: dict[tuple[str, str], tuple[ReferenceResource, dict[int, ThreadOfControl]]] = {}
        self._connections: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._listener = Listener(address, authkey=authkey)
        self._closed = False
        threading.Thread(target=self._accept, name="reference-server", daemon=True).start()

    def close(self) -> None:
        """Takes no more connections."""
        self._closed = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except _LOST:
                continue  # a client that died while it connected, or the end
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        key: tuple[str, str] | None = None
        try:
            key = connection.recv()
            resource, controls = self._joined(key)
            while True:
                control_id, name, arguments = connection.recv()
                with self._lock:
                    control = controls.setdefault(control_id, ThreadOfControl())
                with entered(control):
                    connection.send(self._answer(resource, key[0], name, arguments))
        except _LOST:
            pass
        finally:
            connection.close()
            if key is not None:
                self._left(key)

    def _joined(self, key: tuple[str, str]) -> tuple[ReferenceResource, dict[int, ThreadOfControl]]:
        with self._lock:
            self._connections[key] = self._connections.get(key, 0) + 1
            if key not in self._clients:
                self._clients[key] = (ReferenceResource(self._stores[key[0]]), {})
            return self._clients[key]

    def _left(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._connections[key] -= 1
            if self._connections[key]:
                return
            resource, _ = self._clients.pop(key)
            alone = not any(name == key[0] for name, _ in self._clients)
        store = self._stores[key[0]]
        store.disconnect(resource)
        if alone:
            for xid, state in store.branches.items():
                if state is BranchState.S2:
                    store.expire(xid)  # nobody is left who could complete it; its timeout would pass some time

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
        """As `xa.ResourceManager` says."""
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
        """As `xa.ResourceManager` says."""
        code: Code = self.ask("open", open_string, rmid, flags & ~TMASYNC)
        return code

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Code:
        """As `xa.ResourceManager` says."""
        code: Code = self.ask("close", close_string, rmid, flags & ~TMASYNC)
        return code

    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._verb("start", xid, rmid, flags)

    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._verb("end", xid, rmid, flags)

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._verb("prepare", xid, rmid, flags)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._verb("commit", xid, rmid, flags)

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._verb("rollback", xid, rmid, flags)

    def forget(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._verb("forget", xid, rmid, flags)

    def recover(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[Xid]:
        """As `xa.ResourceManager` says."""
        xids: Sequence[Xid] = self.ask("recover", rmid, flags, count)
        return xids

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        """As `xa.holdings.HoldingsReporting` says."""
        branches: Sequence[InDoubtBranch] = self.ask("in_doubt", rmid, flags, count)
        return branches

    def diagnose(self, open_string: str) -> Diagnosis:
        """As `xa.diagnosis.Diagnosing` says."""
        try:
            diagnosis: Diagnosis = self.ask("diagnose", open_string)
        except ResourceUnavailable as error:
            return Diagnosis((Check(Health.FAIL, "reachable", error.message, "start the process that serves it"),))
        return diagnosis

    def complete(self, handle: Handle | None, rmid: int, flags: int = 0) -> Completion:
        """As `xa.ResourceManager` says."""
        completion: Completion = self.ask("complete", handle, rmid, flags)
        return completion

    def session(self, rmid: int) -> RemoteSession:
        """As `xa.ResourceManager` says."""
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
        """What this branch wrote, else what is committed, else None."""
        return self._remote.ask("session.read", self._rmid, key)

    def write(self, key: str, value: Any) -> None:
        """Writes, under the thread's branch."""
        self._remote.ask("session.write", self._rmid, key, value)

    def append(self, key: str, item: Any) -> None:
        """Writes the tuple at `key` with `item` behind it."""
        self._remote.ask("session.append", self._rmid, key, item)
