"""This module is a TCP proxy between SqlLog and PostgreSQL, which loses a message on purpose."""

from __future__ import annotations

import threading
from enum import Enum

from tests.false_server import ForwardingServer, Line


class Loss(Enum):
    """Which message gets lost; with it both connections of its pair are reset."""

    NONE = "none"
    REQUEST = "the request, before the server has it"
    REPLY = "the reply, after the server did what was asked"


class Proxy(ForwardingServer):
    """Passes on to the server at the port `target`. Messages that contain a word are the ones that get lost."""

    def __init__(self, target: int) -> None:
        self._mutex = threading.Lock()
        self.lose(Loss.NONE, b"")
        super().__init__(("127.0.0.1", target))

    def lose(self, loss: Loss, word: bytes, times: int = 1) -> None:
        """From now on, so many times."""
        self._loss, self._word, self._times = loss, word, times

    def ask(self, line: Line) -> None:
        while octets := line.client.recv(65536):
            if self._is_lost(octets):
                if self._loss is Loss.REQUEST:
                    return
                line.is_lost = True
            line.server.sendall(octets)

    def answer(self, line: Line) -> None:
        while (octets := line.server.recv(65536)) and not line.is_lost:
            line.client.sendall(octets)

    def _is_lost(self, octets: bytes) -> bool:
        with self._mutex:
            if self._loss is Loss.NONE or self._word not in octets or self._times == 0:
                return False
            self._times -= 1
            return True
