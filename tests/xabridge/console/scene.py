"""Scene: a broker with users, queues, dead letters and branches, a node with transactions in doubt, and a console that
watches them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from dtx.amqp.sasl.scram import MIN_ITERATIONS
from dtx.broker.access.credentials import set_password
from dtx.broker.access.permissions import Permissions
from rm_amqp import Message
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.two_resources import TwoResources
from tests.xabridge.cli.field import OTHER_LOG, OTHERS, Field
from tests.xabridge.traffic import Traffic
from tm import configuration_from
from xa import Xid
from xa.configuration import Section
from xabridge.console.server import Server, serving
from xabridge.console.settings import ConsoleSettings, WatchedBroker, WatchedNode
from xabridge.testing.ports import free_port

RULES: Final[dict[str, dict[str, Any]]] = {
    "operator": {
        "consume": ["*"], "produce": ["*"], "create": ["*"], "coordinate": "all", "manage": True, "read_payload": True,
    },
    "viewer": {"view": True},
    "orders-svc": {"consume": ["orders"], "produce": ["invoices"], "coordinate": "own"},
}  # fmt: skip
TOKEN: Final = "a token of a node"  # noqa: S105 — of these tests
PASSWORD: Final = "a p@ss/w:rd %41"  # noqa: S105 — of the users of these tests


def url(broker: EmbeddedBroker, user: str = "operator") -> str:
    """The open string of a user."""
    return f"amqp://{user}:a%20p%40ss%2Fw%3Ard%20%2541@{broker.address}/?timeout=20"


def broker_with_users(folder: Path, rules: dict[str, dict[str, Any]] | None = None, **config: Any) -> EmbeddedBroker:
    """A broker with these users, who all have PASSWORD."""
    folder.mkdir(parents=True, exist_ok=True)
    rules = RULES if rules is None else rules
    users = folder / "users"
    if tuple(rules) in _USERS:
        users.write_bytes(_USERS[tuple(rules)])
    else:
        for user in rules:
            set_password(users, user, PASSWORD, iterations=MIN_ITERATIONS)
        _USERS[tuple(rules)] = users.read_bytes()
    return EmbeddedBroker(
        folder, users=users, permissions=Permissions.from_section(Section(rules)), plain_without_tls=True, **config
    )


_USERS: dict[tuple[str, ...], bytes] = {}
"""The file of these users, which takes long to make."""


def fill(broker: EmbeddedBroker) -> None:
    """Queues, dead letters, and a branch in doubt that is no node's of the scene."""
    traffic = Traffic(url(broker))
    for name, count in (("orders", 60), ("invoices", 4), ("parcels", 2)):
        traffic.post(name, *(Message({"number": one}, id=f"{name}-{one}") for one in range(count)))
    traffic.reject("orders", 5)
    traffic.reject("parcels", 1)
    letter = Message(
        {"number": 99}, id="orders-99",
        annotations={
            "x-opt-dead-reason": "ValueError: no such customer", "x-opt-dead-place": "shop/orders.py, line 17, handle",
        },
    )  # fmt: skip
    traffic.post("orders.dead", letter)
    traffic.prepare(Xid(7, b"of somebody else", b"branch"), "orders", "invoices")
    traffic.close()


def doubts(field: Field) -> None:
    """Two transactions in doubt at the node: one decided, one of another node."""
    for store in ("broker", "shop"):
        field.prepare(store, field.gtrid(8231), "key")
    field.decide(field.gtrid(8231), "broker", "shop")
    field.now += 250
    field.prepare("shop", field.gtrid(114, incarnation=OTHERS, node="orders-2", log_id=OTHER_LOG), "another")
    field.now += 100


@contextlib.contextmanager
def console(brokers: Sequence[tuple[str, str]], field: Field | None = None, **settings: Any) -> Iterator[Server]:
    """A console that serves. `brokers`: names and URLs."""
    watched = tuple(WatchedBroker(name, place) for name, place in brokers)
    made = ConsoleSettings(listen=f"127.0.0.1:{free_port()}", brokers=watched, **settings)
    configuration = None if field is None else configuration_from(field.config)
    with serving(made, configuration) as server:
        yield server


@contextlib.contextmanager
def node() -> Iterator[WatchedNode]:
    """A node with two consumers, a transaction under way, and three that are over, one of them rolled back."""
    port = free_port()
    with TwoResources(http=f"127.0.0.1:{port}", http_token=TOKEN) as both:
        consumers = [
            both.manager.consumer(queue, resource="one")(lambda _message, _tx: None)
            for queue in ("orders", "<img src=x onerror=alert(1)>")
        ]
        for number in range(2):
            with both.manager.begin():
                both.write(f"key {number}")

        with contextlib.suppress(LookupError), both.manager.begin():
            both.write("none")
            raise LookupError
        under_way = both.manager.begin()
        both.manager["two"].write("under way", "value")
        yield WatchedNode("orders-1", f"http://127.0.0.1:{port}", TOKEN)
        under_way.rollback()
        del consumers


@contextlib.contextmanager
def scene(
    folder: Path, query: str = "5f0c7be2-9d1b-4a57-b4cf-6a2f8a1c9e33"
) -> Iterator[tuple[EmbeddedBroker, Field, Server]]:
    """Everything together, with a pipeline in the middle of a batch; and a second broker that is away."""
    from tests.xabridge.console.batches import pipeline  # noqa: PLC0415 — it uses this module

    with ExitStack() as stack:
        broker = broker_with_users(folder / "main")
        stack.callback(broker.stop)
        fill(broker)
        field = Field(folder)
        stack.callback(field.close)
        field.configure(urls=[(name, field.url(name, scheme="shown-test")) for name in ("broker", "shop")])
        doubts(field)
        nodes = (stack.enter_context(node()), WatchedNode("orders-2", f"http://127.0.0.1:{free_port()}", TOKEN))
        made = stack.enter_context(pipeline(broker, folder, query=query))
        away = f"amqp://127.0.0.1:{free_port()}/?connect_timeout=2&timeout=5"
        server = stack.enter_context(
            console(
                [("main", f"amqp://{broker.address}/?connect_timeout=2&timeout=5"), ("depot", away)],
                field,
                nodes=nodes,
                pipelines=made.watched,
            )
        )
        yield broker, field, server
