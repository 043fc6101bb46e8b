"""This module is a TCP proxy between SqlLog and PostgreSQL, which loses a message on purpose."""

from __future__ import annotations

import socket
import threading
from enum import Enum
from typing import Self


class Loss(Enum):
    """Which message gets lost; with it both connections of its pair are reset."""

    NONE = "none"
    REQUEST = "the request, before the server has it"
    REPLY = "the reply, after the server did what was asked"


class Proxy:
    """Listens on a free port of the loopback. Messages that contain `word` are the ones that get lost, `times`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.loss = Loss.NONE
        self.word = b""
        self.times = 0
        self._mutex = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._listen, daemon=True)]
        self._threads[0].start()

    def lose(self, loss: Loss, word: bytes, times: int = 1) -> None:
        """From now on."""
        self.loss, self.word, self.times = loss, word, times

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            _shut(end)
        for thread in self._threads:
            thread.join(60)
        for end in self._sockets:
            end.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += (client, server)
            lost = threading.Event()
            for source, sink, forth in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._pump, args=(source, sink, lost, forth), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, lost: threading.Event, forth: bool) -> None:
        try:
            while octets := source.recv(65536):
                if forth and self._is_lost(octets):
                    if self.loss is Loss.REQUEST:
                        break
                    lost.set()
                elif not forth and lost.is_set():
                    break
                sink.sendall(octets)
        except OSError:
            pass
        _shut(source)
        _shut(sink)

    def _is_lost(self, octets: bytes) -> bool:
        with self._mutex:
            if self.loss is Loss.NONE or self.word not in octets or self.times == 0:
                return False
            self.times -= 1
            return True


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
