"""The nursery is a process that has imported everything, and forks the children of the campaign.

A campaign starts hundreds of processes, and would spend most of its time on imports otherwise. `Nursery` is the
campaign's end, `python -m bench.crash.nursery` the process, with a socket as its stdin. A request is JSON, module and
argument, with three descriptors: the child's stdin, stdout and stderr. The answer is the child's process id.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from typing import Any, Final

REQUEST: Final = 16_384


class Nursery:
    """The process, started; children outlive it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "bench.crash.nursery"]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), process_group=0)  # noqa: S603 — our own command

    def bear(self, module: str, argument: dict[str, Any], descriptors: tuple[int, int, int]) -> int:
        """A child that runs `module`; its process id."""
        socket.send_fds(self._socket, [json.dumps([module, json.dumps(argument)]).encode()], descriptors)
        return int(self._socket.recv(REQUEST))

    def close(self) -> None:
        """Ends the process."""
        self._socket.close()
        self._process.wait()


def main() -> None:
    """`python -m bench.crash.nursery`."""
    import bench.crash.bank.worker  # noqa: PLC0415 — what every child needs, before any is forked
    import bench.crash.broker  # noqa: PLC0415
    import bench.crash.consumers.worker  # noqa: PLC0415
    import bench.crash.worker  # noqa: F401, PLC0415

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no wait for them: they are gone when they end
    with socket.socket(fileno=os.dup(0)) as asked:
        while True:
            request, descriptors, _, _ = socket.recv_fds(asked, REQUEST, 3)
            if not request:
                return
            module, argument = json.loads(request)
            child = os.fork()
            if child == 0:
                break
            for descriptor in descriptors:
                os.close(descriptor)
            asked.send(str(child).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.setpgid(0, 0)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # to see where a child stands that is stuck
    sys.argv = [module, argument]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
