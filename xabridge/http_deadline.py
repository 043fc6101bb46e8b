"""within: an HTTP client's exchange that ends in time. http.client bounds each read, so that a server which sends an
octet now and then would hold it for ever."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPConnection


@contextmanager
def within(seconds: float, connection: HTTPConnection) -> Iterator[None]:
    """Connects, and after so many seconds breaks the connection off: TimeoutError, whatever was read."""
    connection.connect()
    connected = connection.sock
    is_late = threading.Event()

    def break_off() -> None:
        is_late.set()
        with suppress(OSError):
            socket.socket.shutdown(connected, socket.SHUT_RDWR)  # below TLS, which another thread is in

    timer = threading.Timer(seconds, break_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if is_late.is_set():
            raise TimeoutError(f"no whole answer within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError(f"no whole answer within {seconds:g} s")
