"""The resource managers of one process, by name, and what a pipeline asks of them beyond XA.

Brokers of `rm_amqp` have fences, browse and bulk work; databases and other brokers are asked by XA alone. Other brokers
take the messages of sinks. They can't be read from, because what a prepared branch of theirs holds can't be read.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

import rm_delta
from tm.resources import ConfigurationError, Resource, ResourceConfig
from tm.resources.blocking_ports import BlockingPorts
from xa import (
    TMENDRSCAN,
    TMSTARTRSCAN,
    Code,
    ResourceManager,
    SendingMessages,
    SharingBranches,
    XaError,
    Xid,
)
from xa.coroutines import drive
from xa.open_string import shown
from xa.resource_manager import RefusingRegistrar
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.core.task.databases import MARIADB, POSTGRES, SCHEMES, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rm_amqp import MessagingSession
    from rm_delta import DeltaResource
    from tm.log import Branch
    from tm.two_phase.ports import Answer
    from tm.two_phase.return_codes import Verb
    from xabridge.pipeline.core.task.databases import Database

T = TypeVar("T")

RMID: Final = 1
SCANNED: Final = 1_000_000
"""Branches that a database tells at a time: all of them."""


class Resources:
    """The resource managers of one process, by name. A resource stays open for the next task that asks for it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Resource] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, name: str, url: str) -> Resource:
        """The resource; PipelineError for one that a pipeline can't use."""
        with self._lock:
            if self._pid != os.getpid():  # a forked process: what is open is its parent's
                self._open, self._pid = {}, os.getpid()
            resource = self._open.get((name, url))
            if resource is None:
                resource = self._open[name, url] = _made(name, url)
            return resource

    def of(self, urls: Iterable[tuple[str, str]]) -> dict[str, Resource]:
        """Several, by name."""
        return {name: self.get(name, url) for name, url in urls}

    def close(self) -> None:
        """Closes every one of them."""
        with self._lock:
            opened, self._open = self._open, {}
            mine = self._pid == os.getpid()
        for resource in opened.values() if mine else ():
            resource.close()


PROCESS: Final = Resources()
"""Those of this process. Spark reuses its workers, and opening is the most expensive part of a small task."""


def _made(name: str, url: str) -> Resource:
    try:
        resource = Resource(name, RMID, ResourceConfig(expanded(f"resources.{name}", url)), RefusingRegistrar())
    except ConfigurationError as error:
        raise PipelineError(str(error)) from error
    writes = is_lake(resource) or scheme_of(url) in SCHEMES
    if not (writes or isinstance(resource.rm, SendingMessages)):
        raise PipelineError(
            f"resources.{name}: a pipeline works with brokers (amqp://, openwire://, amqp010://), PostgreSQL "
            f"(postgresql://) and MariaDB (mariadb://, mysql://) in two phases, and Delta tables (delta://), and "
            f"{shown(url)} is a resource of {resource.rm.name}"
        )
    return resource


class SharedBroker(SharingBranches, ResourceManager, Protocol):
    """A broker whose branches all processes of a pipeline share."""


def broker(resource: Resource) -> SharedBroker:
    """The resource as such a broker; PipelineError where it is none."""
    if isinstance(resource.rm, SharingBranches):
        return cast("SharedBroker", resource.rm)
    raise PipelineError(f"resources.{resource.name}: only an xabridge broker is read, and this is {resource.rm.name}")


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A message that is encoded already."""

    octets: bytes

    def encode(self) -> bytes:
        return self.octets


def send_messages(resource: Resource, address: str, messages: Sequence[bytes]) -> None:
    """Sends encoded messages under the branch of the calling thread, in bulk where the broker can. XaError, or
    PipelineError for a resource that is no broker."""
    rm = resource.rm
    if isinstance(rm, SharingBranches):
        rm.session(resource.rmid).post(address, messages)
        return
    if not isinstance(rm, SendingMessages):
        raise PipelineError(f"resources.{resource.name}: messages need a broker, and this is {rm.name}")
    session: MessagingSession = rm.session(resource.rmid)
    for octets in messages:
        session.send(address, _Encoded(octets))


def is_lake(resource: Resource) -> bool:
    """Whether the resource has Delta tables. It is found out without loading their library."""
    return resource.rm.name == rm_delta.NAME


def lake(resource: Resource) -> DeltaResource:
    """The resource as a lake; PipelineError where it is none."""
    if is_lake(resource):
        return cast("DeltaResource", resource.rm)
    raise PipelineError(f"resources.{resource.name}: it has no Delta tables, because it is {resource.rm.name}")


def prepared_branches(resource: Resource, prefix: bytes) -> frozenset[Xid]:
    """The prepared branches whose gtrid begins with `prefix`."""

    def ask() -> frozenset[Xid]:
        if isinstance(resource.rm, SharingBranches):
            return frozenset(resource.rm.prepared(resource.rmid, prefix))
        found = resource.rm.recover(resource.rmid, TMSTARTRSCAN | TMENDRSCAN, SCANNED)
        return frozenset(xid for xid in found if xid.gtrid.startswith(prefix))

    return call_resource(resource, "recover", ask)


def ask_branches(
    resources: Mapping[str, Resource], verb: Verb, branches: Sequence[Branch], flags: int = 0
) -> list[Answer]:
    """Asks `verb` of every branch, overlapped where the resource managers can; the answers in their order."""
    return drive(BlockingPorts(resources, None).ask(verb, tuple(branches), flags))


def call_resource(resource: Resource, routine: str, ask: Callable[[], T]) -> T:
    """Calls `ask` on an open resource, and returns its result. It is called again where the connection turned out to
    have been lost before. XaError."""
    was_open = not resource.suspect
    try:
        return _once(resource, routine, ask)
    except XaError as error:
        if not was_open or error.code is not Code.XAER_RMFAIL:
            raise
        return _once(resource, routine, ask)


def _once(resource: Resource, routine: str, ask: Callable[[], T]) -> T:
    if resource.suspect:
        resource.reopen()
    try:
        return ask()
    except XaError as error:
        resource.failed(error)
        raise
    except Exception as raised:
        raise resource.as_xa_error(raised, routine) from raised


def database_of(name: str, url: str) -> Database:
    """The kind of a resource's database; its driver is loaded here. PipelineError: rows can't be written there."""
    scheme = scheme_of(url)
    if scheme in POSTGRES:
        from xabridge.pipeline.core.task import postgres  # noqa: PLC0415 — loads psycopg

        return postgres.DATABASE
    if scheme in MARIADB:
        from xabridge.pipeline.core.task import mariadb  # noqa: PLC0415 — loads PyMySQL

        return mariadb.DATABASE
    raise PipelineError(f"resources.{name}: tables need PostgreSQL or MariaDB, and this is {scheme}")
