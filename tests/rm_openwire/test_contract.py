"""This module runs the contract suite over OpenWireResource, against ActiveMQ Classic and ActiveMQ Artemis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress

import pytest

from rm_amqp import Message
from rm_openwire import OpenWireResource
from tests.rm_db.proxy import Proxy
from tests.rm_openwire.java_brokers import JavaBroker
from xa import TMENDRSCAN, TMONEPHASE, TMSTARTRSCAN, TMSUCCESS, Registrar, ResourceManager, UnknownBranch
from xa.in_process_branches import Branches
from xabridge.testing.contract.client import RMID, ScriptedRegistrar, new_xid
from xabridge.testing.contract.harness import Capabilities, Harness
from xabridge.testing.contract.resource_manager import *  # noqa: F403 — the suite


class OpenWireHarness(Harness):
    """One broker for the session, behind a proxy; each test has queues of its own."""

    wrong_open_string = "openwire://127.0.0.1:61616/?colour=red"
    capabilities = Capabilities(branches_shared=False, joins_active=False, heuristics=False, expires=False)

    def __init__(self, broker: JavaBroker) -> None:
        self.broker = broker
        self.proxy = Proxy(broker.url)
        self.queue = f"keys-{time.time_ns()}"
        self.nothing = f"nothing-{time.time_ns()}"
        self.open_string = f"{self.proxy.url}?timeout=20&idle_timeout=5"
        self.clients: list[OpenWireResource] = []
        self._onlooker = OpenWireResource(ScriptedRegistrar())

    def new(self, registrar: Registrar) -> OpenWireResource:
        client = OpenWireResource(registrar)
        self.clients.append(client)
        return client

    def write(self, rm: ResourceManager, rmid: int, key: str) -> None:
        rm.session(rmid).send(self.queue, Message(key))

    def read(self, rm: ResourceManager, rmid: int) -> None:
        list(rm.session(rmid).browse(self.nothing))

    def committed(self) -> AbstractSet[str]:
        rm = self._onlooker
        rm.open(self.broker.url, RMID)
        rm.start(xid := new_xid(), RMID)
        found = {str(message.body) for message in rm.session(RMID).browse(self.queue)}
        rm.end(xid, RMID, TMSUCCESS)
        rm.commit(xid, RMID, TMONEPHASE)
        return found

    def crash(self, rm: ResourceManager) -> None:
        """What is not prepared is Classic's as soon as it has noticed, and Artemis' when its timer has ended it: a
        rollback does it at once."""
        assert isinstance(rm, OpenWireResource)
        branches = rm.driver
        assert isinstance(branches, Branches)
        unprepared = list(branches._branches)
        rm.drop()
        self.clients.remove(rm)
        self._onlooker.open(self.broker.url, RMID)
        for xid in unprepared:
            with suppress(UnknownBranch):
                self._onlooker.rollback(xid, RMID)

    def disconnect(self, rm: ResourceManager) -> None:
        del rm
        self.proxy.cut()

    def go_down(self) -> None:
        self.broker.kill()
        self.proxy.cut()  # it may not have noticed yet

    def come_back(self) -> None:
        self.broker.start()

    def narrow(self) -> None:
        self.open_string = f"{self.proxy.url}?timeout=5&connections=1"

    def leaks(self) -> list[str]:
        rm = self._onlooker
        rm.open(self.broker.url, RMID)
        left = []
        for xid in rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN):
            left.append(f"in doubt: {xid}")
            rm.rollback(xid, RMID)  # the next test begins without
        return left + [f"{client.outstanding} handles" for client in self.clients if client.outstanding]

    def close(self) -> None:
        for client in (self._onlooker, *self.clients):
            client.drop()
        self.proxy.close()


@pytest.fixture
def harness(broker: JavaBroker) -> Iterator[OpenWireHarness]:
    """Each of the brokers; conftest.py says which part of the suite runs over which."""
    harness = OpenWireHarness(broker)
    yield harness
    harness.close()
