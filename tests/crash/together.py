"""This module runs two nodes, and two processes of one of them, that move messages at the same time from one broker,
which decides by one token queue, to another one. Each recovers all the time. In every round the test kills one of them
at a point of its transaction, and also the deciding broker if the round asks for it.

When each node is back and has recovered, every message must be at one of the two brokers, once, the outcomes that the
application got must be true, and no decision may be left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rm_amqp import DecidingBroker, Message
from rm_amqp.decider.tokens import Token
from tests.crash.forked import ForkedProcess
from tests.crash.test_amqp_kill import PATIENCE_S, Site, check_moved, hear
from tests.rm_amqp.client import RMID, new_xid
from tests.waiting import until
from xa import TMENDRSCAN, TMONEPHASE, TMSTARTRSCAN, TMSUCCESS

NODES = ("orders-1", "orders-2", "orders-2")
PER_ROUND = 30
POINTS = ("before decide in 2", "after discharge 2", "after decide in 2", "before commit out 2", "after commit out 2")


class Decides(Protocol):
    """The broker that decides."""

    @property
    def address(self) -> str:
        """host:port."""
        ...


class Together:
    """The processes and the two brokers; `restart` kills the one that decides, and starts it again."""

    def __init__(self, source: Decides, target: Site, restart: Callable[[], object] | None = None) -> None:
        self._source = source
        self._target = target
        self._restart = restart
        self.messages: list[str] = []
        self.told: dict[str, str] = {}

    @contextmanager
    def _onlooker(self) -> Iterator[DecidingBroker]:
        rm = DecidingBroker()
        rm.open(f"decider+amqp://{self._source.address}/?token_queue=onlookers&slots=1", RMID)
        try:
            yield rm
        finally:
            rm.drop()

    def _work(self, call: Callable[[Any], object]) -> Any:
        with self._onlooker() as rm:
            rm.start(xid := new_xid(), RMID)
            found = call(rm.session(RMID))
            rm.end(xid, RMID, TMSUCCESS)
            rm.commit(xid, RMID, TMONEPHASE)
        return found

    def look(self, queue: str) -> list[str]:
        """What is in a queue of the broker that decides."""
        found: list[str] = self._work(lambda session: [str(message.body) for message in session.browse(queue)])
        return found

    def feed(self, name: str) -> None:
        """Messages to move."""
        new = [f"{name}-{number}".replace(" ", "-") for number in range(PER_ROUND)]
        self.messages += new
        self._work(lambda session: [session.send("x", Message(body)) for body in new])

    def _start(self, node: str, point: str, *victims: str) -> ForkedProcess:
        arguments = (self._source.address, self._target.address, node, point, *victims)
        return ForkedProcess("tests.crash.decider_child", *arguments)

    def run(self, dies: int, point: str, *, nodes: Sequence[str] = NODES) -> None:
        """One round: the process number `dies` is killed at `point`, and what has died comes back."""
        self.feed(f"{point} {len(self.messages)}")
        points = [(node, point, "self") if number == dies else (node, "- 0") for number, node in enumerate(nodes)]
        processes = [self._start(*each) for each in points]
        listeners = [threading.Thread(target=hear, args=[process, self.told]) for process in processes]
        for listener in listeners:
            listener.start()

        try:
            if self._restart is not None:
                processes[dies].wait(PATIENCE_S)
                self._restart()
            codes = [process.wait(PATIENCE_S) for process in processes]
        finally:
            for listener, process in zip(listeners, processes, strict=True):
                process.kill()
                listener.join()
                process.close()
        assert codes == [-9 if number == dies else 0 for number in range(len(nodes))]

    def finish(self) -> None:
        """All nodes come back and recover: one of them waits for a branch of another until that has finished it."""
        processes = {node: self._start(node, "recover") for node in sorted(set(NODES))}
        try:
            for node, process in processes.items():
                assert process.wait(PATIENCE_S) == 0, node
        finally:
            for process in processes.values():
                process.close()

    def check(self) -> None:
        with self._target.client() as target:
            # What was never prepared is there again when the time of its branch has passed.
            until(lambda: len(self.look("x") + target.look("y")) >= len(self.messages), "some messages are nowhere")
            left, moved = self.look("x"), [str(body) for body in target.look("y")]
            assert not target.rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN)
        check_moved(self.messages, left, moved, self.told)
        assert sum(told == "committed" for told in self.told.values()) > len(self.messages) // 4
        for slot in range(2):
            assert [Token.decode(body).decided for body in self.look(f"xabridge.tokens.{slot}")] == [()], slot
