"""The configuration of one process among several that run the same App.

If a resource decides, and there is no log, all processes share one: each is known by its incarnation and its lease. If
there is a log, also beside a resource that decides, each process needs a node and a log of its own, because a log
belongs to one process at a time; and they must be the same after a restart, because only their node finishes what was
left in doubt under it. So process 1 has the node and the log of the configuration, and process number 2 has `<node>-2`
and, in files, `<log>-2`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tm.log.factory import folder_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tm import Configuration

_FILE: Final = "file://"


def configuration_of(configuration: Configuration, number: int) -> Configuration:
    """The configuration of the process `number`, from 1 on."""
    if number == 1 or configuration.log is None:
        return configuration
    return replace(configuration, node=f"{configuration.node}-{number}", log=_numbered(configuration.log, number))


def _numbered(log: str, number: int) -> str:
    if not log.startswith(_FILE):
        return log  # one database has the logs of many nodes
    return f"{log.rstrip('/')}-{number}"


def left_behind(configuration: Configuration, processes: int) -> Iterator[int]:
    """The numbers of processes that were there before, have logs in files, and are not among so many any more: nobody
    else finishes what their nodes have left in doubt."""
    if configuration.log is None:
        return
    log = folder_of(configuration.log)
    if log is None:
        return
    for folder in sorted(log.parent.glob(f"{log.name}-*")):
        number = folder.name.removeprefix(f"{log.name}-")
        if folder.is_dir() and number.isdecimal() and int(number) > max(processes, 1):
            yield int(number)
