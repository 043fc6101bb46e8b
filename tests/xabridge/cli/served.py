"""This module is the reference resource manager as a plug-in. The scheme `reference-test` of its open strings selects
it; they name the socket of its server, so that the command `xabridge` reaches it from any process.

    reference-test:///path/of/the/socket?store=NAME
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from xa import Code, Handle, Registrar, Xid
from xa.diagnosis import Check, Diagnosis, Health
from xa.holdings import Holding, InDoubtBranch, Relation
from xabridge.testing.reference import DecidingStore, ReferenceDecider
from xabridge.testing.reference.remote import RemoteReference

KEY: Final = b"a key of these tests"
GROUP: Final = "xabridge.resource_managers"


class ServedReference(RemoteReference):
    """Learns where its server is when it is opened or diagnosed."""

    def __init__(self, registrar: Registrar) -> None:
        super().__init__("", KEY, "", registrar)

    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code:
        self._go_to(open_string)
        return super().open(self.identity, rmid, flags)

    def diagnose(self, open_string: str) -> Diagnosis:
        if "store=" not in open_string:
            return Diagnosis((Check(Health.FAIL, "open string", "it names no store", "add ?store=NAME"),))
        self._go_to(open_string)
        return super().diagnose(self.identity)

    def _go_to(self, open_string: str) -> None:
        parts = urlsplit(open_string)
        self._address = parts.path
        self._key = (parse_qs(parts.query)["store"][0], self._key[1])


class ServedWithoutDetails:
    """One that offers nothing beyond the contract."""

    def __init__(self, registrar: Registrar) -> None:
        self._rm = ServedReference(registrar)

    def __getattr__(self, name: str) -> Any:
        if name in {"in_doubt", "diagnose"}:
            raise AttributeError(name)
        return getattr(self._rm, name)


_SHOWN: Final = {
    "broker": (
        "orders-svc",
        (Holding(Relation.FROM, "orders", "message", 1), Holding(Relation.TO, "invoices", "message", 1)),
    ),
    "shop": ("orders", (Holding(Relation.LOCKED, "public.orders", "row", None, "RowExclusiveLock"),)),
}


class ShownReference(ServedReference):
    """Tells what a broker and a database would, for the manual."""

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        owner, holdings = _SHOWN[self._key[0]]
        return [replace(branch, owner=owner, holdings=holdings) for branch in super().in_doubt(rmid, flags, count)]


class FatalReference(ServedReference):
    """Kills its process before or after the verb that its open string names: &kill=before-rollback."""

    _point = ""

    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code:
        self._point = parse_qs(urlsplit(open_string).query)["kill"][0]
        return super().open(open_string, rmid, flags)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        self._pass("before-commit")
        answer = super().commit(xid, rmid, flags)
        self._pass("after-commit")
        return answer

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        self._pass("before-rollback")
        answer = super().rollback(xid, rmid, flags)
        self._pass("after-rollback")
        return answer

    def _pass(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()  # for the signal


DECIDER: Final = DecidingStore("decider")


class InMemoryDecider(ReferenceDecider):
    """One that decides, for commands in this process."""

    def __init__(self, registrar: Registrar) -> None:
        super().__init__(DECIDER, registrar)

    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        del open_string
        return super().open(DECIDER.url, rmid, flags)


def install(folder: Path) -> Mapping[str, str]:
    """Makes a distribution in `folder` that registers them; the environment in which a process finds it."""
    info = folder / "served-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: served\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\n"
        f"reference-test = {__name__}:ServedReference\n"
        f"plain-test = {__name__}:ServedWithoutDetails\n"
        f"decider+memory-test = {__name__}:InMemoryDecider\n"
        f"shown-test = {__name__}:ShownReference\n"
        f"fatal-test = {__name__}:FatalReference\n"
    )
    return {"PYTHONPATH": str(folder)}
