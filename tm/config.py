"""xabridge.toml: reading it, with errors that name the file and the key, and how to correct it.

    node = "orders-1"
    log  = "file:///var/lib/xabridge/log"
    timeout_s = 60
    telemetry = true
    http = "127.0.0.1:9464"
    http_token_env = "NODE_TOKEN"
    http_act_token_env = "NODE_ACT_TOKEN"

    [resources]
    broker = "amqps://orders-svc@broker:5671"
    shop   = { url = "postgresql://orders@db/shop", mode = "two-phase" }

`xa.configuration` says what `${NAME}` in a text stands for, and reads the file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tm.resources import ResourceConfig
from xa import check_node
from xa.configuration import FLAG, HOST_AND_PORT, TEXT, Kind, a, choice, declared, read_file, seconds, setting
from xa.telemetry.log_lines import FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from xa.configuration import Section

OTHERS: Final = {
    "broker": "a table that `xabridge broker` reads: [the broker](broker.md#configuration)",
    "console": "a table that `xabridge console` reads: [the console](console.md#settings)",
    "pipeline": "a table that [pipelines on Spark](pipeline.md) read",
    "outbox": "a table that `xabridge outbox` reads: [outbox and inbox](outbox.md#settings-of-the-relay)",
}
"""Tables that others read."""
NODE: Final = Kind(
    'a name that stays the same, such as "orders-1": 1 to 32 of the ASCII letters, digits and . _ -',
    lambda value: check_node(a(str, value)),
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of the transaction manager in a configuration file."""

    node: str = field(
        metadata=declared(
            NODE,
            "the name of this transaction manager, which never changes: up to 32 letters, digits and `.` `_` `-`",
            unset="none: it has to be there",
        )
    )
    log: str | None = setting(
        None,
        TEXT,
        "where decisions are kept: `file:///folder`, `postgresql://user@host/database`, or `sqlite:////file`",
        unset="none: needed unless a resource decides",
        secret=True,
    )
    resources: Mapping[str, str | ResourceConfig] = field(
        default_factory=dict,
        repr=False,
        metadata=declared(
            None,
            'a table: the name of each resource, and its URL, or `{ url = "…", mode = "decider" }`. URLs: '
            "[brokers](amqp-client.md#the-open-string), [ActiveMQ](openwire.md#the-open-string), "
            "[Qpid Broker-J](qpid.md#the-open-string), [databases](database-resources.md#configuration), "
            "[Delta Lake tables](delta.md)",
            unset="empty",
        ),
    )
    timeout_s: float = setting(60.0, seconds(), "seconds until a transaction that is not prepared is rolled back")
    recovery_interval_s: float = setting(10.0, seconds(), "seconds between two recovery passes")
    decider: str | None = setting(
        None, TEXT, 'which resource decides, if several have `mode = "decider"`', unset="the only one"
    )
    telemetry: bool = setting(False, FLAG, "[metrics and traces](metrics.md) through OpenTelemetry")
    http: str | None = setting(
        None,
        HOST_AND_PORT,
        "where the manager answers `/live`, `/ready` and `/metrics`: [health](operations.md#health). Each process on a "
        "machine needs its own port",
        unset="nowhere",
    )
    http_token_env: str | None = setting(
        None,
        TEXT,
        "the environment variable with the token, of at least 16 characters, that opens "
        "[the page of the node](operations.md#the-page-of-the-node) there; only a manager needs its value",
        unset="there is no such page",
    )
    http_act_token_env: str | None = setting(
        None,
        TEXT,
        "the environment variable with another token, of at least 16 characters, that lets somebody "
        "[finish transactions there by hand](operations.md#acting-through-a-node); only a manager needs its value",
        unset="no one can",
    )
    log_format: str = setting(
        FORMATS[0],
        choice(*FORMATS),
        'how commands that use this file write log lines, `"text"` or `"json"`: [logs](operations.md#logs)',
    )


def configuration_from(path: str | Path, environment: Mapping[str, str] | None = os.environ) -> Configuration:
    """The configuration in the file `path`. `environment`: None leaves its variables as they are, for somebody who puts
    them in later."""
    return configuration_in(read_file(path, environment, later=environment is None))


def configuration_in(file: Section) -> Configuration:
    """The configuration in a file that is read already."""
    found = file.read(
        Configuration,
        beside=OTHERS,
        resources={name: entry.read(ResourceConfig) for name, entry in file.table("resources").tables(short="url")},
    )
    if found.http_token_env is not None and found.http is None:
        raise file.wrong("http_token_env", 'it is for a page of http, which is missing: http = "127.0.0.1:9464"')
    if found.http_act_token_env is not None and found.http_token_env is None:
        raise file.wrong("http_act_token_env", 'who acts has to see first: http_token_env = "NODE_TOKEN" is missing')
    return found
