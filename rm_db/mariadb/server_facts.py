"""The servers that can be used: their versions and settings, as `MariaDatabase` asks for them at open.

Which versions keep a prepared branch, and since when (MDEV-742; MySQL's notes of the releases):

| server | |
|---|---|
| MariaDB before 10.5.2 | rolls a prepared branch back when its session ends: refused |
| MariaDB from 10.5.2 on | keeps it; it is bound to its session until that ends |
| MySQL before 8.0.30 | after a crash a prepared branch and the binary log may differ: refused |
| MySQL from 8.0.30 on | keeps it; it belongs to no session from XA PREPARE on, unless xa_detach_on_prepare is off |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLES: Final = (
    "version",
    "version_comment",
    "read_only",
    "innodb_read_only",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "wsrep_on",
    "xa_detach_on_prepare",
)
ASK_VARIABLES: Final = "SHOW SESSION VARIABLES WHERE Variable_name IN ({})".format(
    ", ".join(f"'{name}'" for name in VARIABLES)
).encode("ascii")

MIN_MARIADB: Final = (10, 5, 2)
MIN_MYSQL: Final = (8, 0, 30)
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_ON: Final = frozenset({"ON", "1", "YES"})


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server's properties."""

    name: str
    version: tuple[int, ...]
    is_mariadb: bool
    detaches: bool
    """Whether a prepared branch is bound to no session, so that its connection is free again."""
    read_only: bool
    flush_log: str
    log_bin: bool
    sync_binlog: str
    galera: bool

    @classmethod
    def of(cls, variables: Mapping[str, Any]) -> ServerFacts:
        """The facts from the answer to ASK_VARIABLES."""
        values = {str(name).lower(): str(value) for name, value in variables.items()}
        text = values.get("version", "")
        found = _NUMBERS.search(text.removeprefix("5.5.5-"))
        is_mariadb = "mariadb" in text.lower() or "mariadb" in values.get("version_comment", "").lower()

        def is_on(name: str) -> bool:
            return values.get(name, "").upper() in _ON

        return cls(
            name=f"{'MariaDB' if is_mariadb else 'MySQL'} {found[0] if found else text}",
            version=tuple(int(part) for part in found.groups()) if found else (),
            is_mariadb=is_mariadb,
            detaches=is_on("xa_detach_on_prepare"),
            read_only=is_on("read_only") or is_on("innodb_read_only"),
            flush_log=values.get("innodb_flush_log_at_trx_commit", "1"),
            log_bin=is_on("log_bin"),
            sync_binlog=values.get("sync_binlog", "1"),
            galera=is_on("wsrep_on"),
        )

    def obstacles(self) -> Iterator[tuple[str, str, str]]:
        """Why the server can't be used in two phases: the subject, what is found, and the repair."""
        oldest = MIN_MARIADB if self.is_mariadb else MIN_MYSQL
        if self.version < oldest:
            why = (
                "rolls prepared branches back when their session ends"
                if self.is_mariadb
                else "may lose a prepared branch, or its place in the binary log, in a crash"
            )
            needed = ".".join(str(part) for part in oldest)
            yield "version", f"{self.name} {why}", f'{needed} or newer is needed, or mode = "decider"'
        if self.galera:
            advice = 'name a server that is no node of a Galera cluster, or use mode = "decider"'
            yield "cluster", "wsrep_on is on: a Galera cluster does not replicate XA transactions", advice
        if self.read_only:
            yield "writable", "the server is read-only (read_only): it takes no writes", "name the primary"

    def weaknesses(self) -> Iterator[tuple[str, str]]:
        """Settings with which a crash of the server's machine loses what was prepared, and the repair."""
        if self.flush_log != "1":
            yield f"innodb_flush_log_at_trx_commit is {self.flush_log}", "set it to 1"
        if self.log_bin and self.sync_binlog != "1":
            yield f"log_bin is on and sync_binlog is {self.sync_binlog}", "set sync_binlog to 1"

    def check(self) -> None:
        """XAER_RMERR: the server can't be used."""
        for _, found, advice in self.obstacles():
            raise xa_error(Code.XAER_RMERR, f"{found}; {advice}")
