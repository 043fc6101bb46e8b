"""A port for a server on this machine, kept for as long as the process that asked for it lives."""

from __future__ import annotations

import itertools
import os
import socket
from collections import deque
from typing import Final

# A bound socket that does not listen keeps every other process from the port, also while the server is stopped. The
# server itself may listen there, because it sets SO_REUSEADDR as well, as servers on Unix do. The number is bounded
# for the sake of open files.
_KEPT: Final[deque[int]] = deque()
_MOST_KEPT: Final = 256
_OFFSETS: Final = itertools.count()


def free_port() -> int:
    """A port below those that the system hands out for outgoing connections. It is free, and given to one caller
    only."""
    for _ in range(20_000):
        port = 10_000 + (os.getpid() * 16 + next(_OFFSETS)) % 20_000
        kept = socket.socket()
        try:
            kept.bind(("127.0.0.1", port))  # without SO_REUSEADDR: refused wherever anybody else is bound
        except OSError:
            kept.close()
            continue
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # from now on the server is let in
        _KEPT.append(kept.detach())
        if len(_KEPT) > _MOST_KEPT:
            os.close(_KEPT.popleft())
        return port
    raise RuntimeError("no port is free")
