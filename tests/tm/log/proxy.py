"""This module is a TCP proxy between SqlLog and PostgreSQL, which loses a message on purpose."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import Enum

from tests.false_server import PATIENCE_S, FalseServer


class Loss(Enum):
    """Which message gets lost; with it both connections of its pair are reset."""

    NONE = "none"
    REQUEST = "the request, before the server has it"
    REPLY = "the reply, after the server did what was asked"


class Proxy(FalseServer):
    """Passes on to the server at the port `target`. Messages that contain a word are the ones that get lost."""

    def __init__(self, target: int) -> None:
        super().__init__(Proxy._pass_on)
        self._target = target
        self._mutex = threading.Lock()
        self.lose(Loss.NONE, b"")

    def lose(self, loss: Loss, word: bytes, times: int = 1) -> None:
        """From now on, so many times."""
        self._loss, self._word, self._times = loss, word, times

    def _pass_on(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            self.keep(server)
            lost = threading.Event()
            answers = threading.Thread(target=self._answer, args=(server, client, lost), daemon=True)
            answers.start()
            with suppress(OSError):
                while octets := client.recv(65536):
                    if self._is_lost(octets):
                        if self._loss is Loss.REQUEST:
                            break
                        lost.set()
                    server.sendall(octets)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            answers.join(PATIENCE_S)

    def _answer(self, server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while (octets := server.recv(65536)) and not lost.is_set():
                client.sendall(octets)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _is_lost(self, octets: bytes) -> bool:
        with self._mutex:
            if self._loss is Loss.NONE or self._word not in octets or self._times == 0:
                return False
            self._times -= 1
            return True
