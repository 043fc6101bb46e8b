"""A node that is lost in phase two: `python -m xabridge.demo.game_day.lost_node --config FILE`.

It works as the shop's worker does, with two handlers, until two transactions are decided and not carried out: the first
one that is to commit at the broker has both branches prepared, the second one is committed at the broker and not in the
database. Then it kills itself (SIGKILL).
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tm import Consumer, ResourceConfig, TransactionManager, configuration_from
from tm.resources import find_factory
from xa import TMONEPHASE, TMUSEASYNC
from xabridge.demo.shop.orders import ORDERS, handle
from xabridge.demo.shop.shop import BROKER, DATABASE

if TYPE_CHECKING:
    from xa import ResourceFactory, Xid


class PhaseTwo:
    """Where the transactions stand that are decided."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = {BROKER: b"", DATABASE: b""}

    def commits(self, resource: str, gtrid: bytes) -> None:
        """A branch is to be committed. This does not return where the transaction is to be left so."""
        with self._lock:
            if self._stopped[resource] or gtrid in self._stopped.values():
                return
            if resource == DATABASE and not self._stopped[BROKER]:
                return
            self._stopped[resource] = gtrid
            if all(self._stopped.values()):
                os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()


class StoppedResource:
    """The resource manager that it wraps, but for the commit of phase two."""

    def __init__(self, name: str, rm: Any, phase_two: PhaseTwo) -> None:
        self._name, self._rm, self._phase_two = name, rm, phase_two

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rm, name)

    @property
    def flags(self) -> int:
        return int(self._rm.flags) & ~TMUSEASYNC

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Any:
        if not flags & TMONEPHASE:
            self._phase_two.commits(self._name, xid.gtrid)
        return self._rm.commit(xid, rmid, flags)


def stopped(name: str, factory: ResourceFactory, phase_two: PhaseTwo) -> ResourceFactory:
    """A factory of resource managers that stop there."""
    return lambda registrar: StoppedResource(name, factory(registrar), phase_two)


def main() -> None:
    """Works until it is lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    configuration = configuration_from(parser.parse_args().config)
    phase_two, resources = PhaseTwo(), {}
    for name, found in configuration.resources.items():
        config = found if isinstance(found, ResourceConfig) else ResourceConfig(found)
        resources[name] = replace(config, factory=stopped(name, find_factory(name, config), phase_two))
    with TransactionManager.from_config(replace(configuration, resources=resources)) as manager:
        Consumer(manager, ORDERS, handle, workers=2).run()


if __name__ == "__main__":
    main()
