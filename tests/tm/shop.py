"""This module makes reference stores and transaction managers over them; the tests of the manager begin with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tm import Outcome, OutcomeUnknown, ResourceConfig, Transaction, TransactionError, TransactionManager
from tm.log import DecisionLog, FileLog
from xa import TMUSEASYNC, Registrar, ResourceManager, ThreadOfControl, entered
from xabridge.testing.reference import DecidingStore, NetworkFault, ReferenceDecider, ReferenceResource, ReferenceStore

NODE = "orders-1"


def outcome_of(tx: Transaction | TransactionError) -> Outcome:
    """What became of it; it is over."""
    assert tx.outcome is not None
    return tx.outcome


def elsewhere(work: Callable[[], object]) -> None:
    """Does it in another thread, and raises what it raises."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(work).result(60)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Shop:
    """`stores` by name; `tm` is the manager of the moment, made when it is first used."""

    def __init__(self, folder: Path, names: Iterable[str] = "ab") -> None:
        self.folder = folder
        self.clock = Clock()
        self.stores: dict[str, ReferenceStore] = {name: ReferenceStore(name) for name in names}
        self.flags = dict.fromkeys(self.stores, TMUSEASYNC)
        self.clients: dict[str, ReferenceResource] = {}
        self.wrap: dict[str, Callable[[ResourceManager], ResourceManager]] = {}
        self._tm: TransactionManager | None = None

    def __getitem__(self, name: str) -> ReferenceStore:
        return self.stores[name]

    @property
    def tm(self) -> TransactionManager:
        if self._tm is None:
            self.open()
        assert self._tm is not None
        return self._tm

    @property
    def log_url(self) -> str:
        return f"file://{self.folder}/log"

    def add_decider(self, name: str = "d") -> DecidingStore:
        store = DecidingStore(name)
        self.stores[name] = store
        self.flags[name] = TMUSEASYNC
        return store

    def config(self, name: str) -> ResourceConfig:
        store = self.stores[name]
        decides = isinstance(store, DecidingStore)

        def factory(registrar: Registrar) -> ResourceManager:
            made: ReferenceResource
            if isinstance(store, DecidingStore):
                made = ReferenceDecider(store, registrar, self.flags[name])
            else:
                made = ReferenceResource(store, registrar, self.flags[name])
            self.clients[name] = made
            return self.wrap[name](made) if name in self.wrap else made

        return ResourceConfig(store.url, "decider" if decides else "two-phase", factory)

    def open(self, *, names: Iterable[str] | None = None, **arguments: Any) -> TransactionManager:
        """A manager; `arguments` go to its constructor."""
        settings: dict[str, Any] = {"clock": self.clock, "sleep": self.clock.sleep, "background": False}
        names = list(self.stores) if names is None else list(names)
        if "log" not in arguments and not any(isinstance(self.stores[name], DecidingStore) for name in names):
            settings["log"] = FileLog(self.folder / "log", NODE, segment_size=8192)
        settings.update(arguments)
        resources = settings.pop("resources", None) or {name: self.config(name) for name in names}
        try:
            self._tm = TransactionManager(settings.pop("node", NODE), resources=resources, **settings)
        except BaseException:
            if "log" not in arguments and "log" in settings:
                settings["log"].close()
            raise
        return self._tm

    def kill(self) -> None:
        """The manager's process dies: its connections break, its log is let go."""
        assert self._tm is not None
        for name, client in self.clients.items():
            self.stores[name].disconnect(client)
        for store in self.stores.values():
            if isinstance(store, DecidingStore):
                store.leases.clear()  # it has run out, since the process is gone
        if self._tm.log is not None:
            self._tm.log.close()
        self._tm.executor.stop()
        self._tm = None

    def restart(self, **arguments: Any) -> TransactionManager:
        """Killed, everything healed, and started again, which recovers."""
        self.kill()
        for store in self.stores.values():
            store.script.clear()
            store.heal()
        return self.open(**arguments)

    def close(self) -> None:
        if self._tm is not None:
            with entered(ThreadOfControl()):
                self._tm.close(timeout_s=0)

    @property
    def log(self) -> DecisionLog:
        """That of the manager."""
        assert self.tm.log is not None
        return self.tm.log

    # --- what is done ------------------------------------------------------------------------------------------
    def write(self, tx: Transaction, value: object = 1, names: Iterable[str] | None = None, key: str = "k") -> None:
        """Work at these stores, or at all."""
        for name in self.stores if names is None else names:
            tx[name].write(key, value)

    def in_doubt(self, *lost: str, names: str | None = None, key: str = "k") -> Transaction:
        """A transaction that is decided, while these stores do not hear of their commit."""
        for name in lost:
            self[name].script.plan("commit", None, NetworkFault.REQUEST_LOST, times=3)
        with pytest.raises(OutcomeUnknown, match="is durable"), self.tm.begin() as tx:
            self.write(tx, names=names, key=key)
        return tx

    # --- what is asserted --------------------------------------------------------------------------------------
    def assert_ended(self, value: object, key: str = "k") -> None:
        """Each store has this value, None where all was rolled back, and nothing is left anywhere."""
        assert self.values(key) == dict.fromkeys(self.stores, value)
        self.assert_nothing_left()

    def values(self, key: str = "k") -> dict[str, Any]:
        return {name: store.data.get(key) for name, store in self.stores.items()}

    def assert_nothing_left_at_stores(self) -> None:
        """No branch, association or lock anywhere."""
        for name, store in self.stores.items():
            assert not store.branches, (name, store.branches)
            assert not store.associations, name
            assert not store.locked_keys, name

    def assert_nothing_left(self) -> None:
        """No branch, association, lock or handle anywhere, no live transaction, no decision."""
        self.assert_nothing_left_at_stores()
        for name, client in self.clients.items():
            assert not client.outstanding, name
        if self._tm is not None:
            assert not self._tm._live
            assert not self._tm._recovery.unfinished
            if self._tm.log is not None:
                assert not self._tm.log.decisions()
