"""`xabridge outbox`: the relay, and what an operator looks at and does.

The database and the broker are those of the table `[outbox]` of xabridge.toml, or of `--database` and `--broker`.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import SQLAlchemyError

from rm_amqp.message import Message
from tm import ConfigurationError
from xa import XaError
from xa.printable import escaped
from xa.secrets import masked
from xa.telemetry.log_lines import write_lines
from xabridge.cli.output import write_json
from xabridge.exit_codes import Exit
from xabridge.outbox import BrokerAway, Inbox, OutboxStore, Relay, Tables, TablesError
from xabridge.outbox.config import OutboxConfig
from xabridge.outbox.tables import REFUSED
from xabridge.text import age, duration, several, whole_number

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from xabridge.outbox import OutboxRow

SUMMARY: Final = "send what is in the outbox, look at it, and settle what the broker refuses"
_DEFAULT_FILE: Final = "xabridge.toml"
_EXITS: Final = "exit codes: 0 done · 1 messages are set aside, or it failed · 2 usage · 5 nothing was done"


def add_arguments(parser: ArgumentParser) -> None:
    """The actions and their flags."""
    parser.epilog = _EXITS
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, summary: str, run_action: Callable[[OutboxStore, Namespace], Exit]) -> ArgumentParser:
        added = actions.add_parser(name, help=summary, description=summary, epilog=_EXITS)
        added.add_argument("--config", metavar="FILE", help=f"the configuration (default {_DEFAULT_FILE})")
        added.add_argument("--database", metavar="URL", help="the outbox's database (default [outbox] database)")
        added.add_argument("--json", action="store_true", help="print JSON")
        added.set_defaults(run_action=run_action)
        return added

    relay = action("relay", "send what is in the outbox, until interrupted", _relay)
    relay.add_argument("--broker", metavar="URL", help="the broker (default [outbox] broker)")
    relay.add_argument("--once", action="store_true", help="end when nothing is due any more")
    action("status", "say how many messages wait, and for how long", _status)
    listing = action("list", "list the messages, oldest first", _list)
    listing.add_argument("--refused", action="store_true", help="only those that were set aside")
    listing.add_argument("--limit", type=whole_number, default=50, metavar="N", help="at most so many (default 50)")
    show = action("show", "show a message", _show)
    show.add_argument("id", type=whole_number, metavar="ID", help="as list shows it")
    retry = action("retry", "send messages again that were set aside", _retry)
    delete = action("delete", "delete messages; they are never sent", _delete)
    for changing in (retry, delete):
        changing.add_argument("ids", type=whole_number, nargs="*", metavar="ID", help="as list shows them")
        changing.add_argument("--refused", action="store_true", help="all that were set aside")
        changing.add_argument("--dry-run", action="store_true", help="only say what would be done")
    delete.add_argument("--yes", action="store_true", help="don't ask: they are lost")
    create = action("create", "make the tables of outbox and inbox where they are missing", _create)
    create.add_argument("--dry-run", action="store_true", help="only print the statements")
    clean = action("clean", "delete old rows of the inbox", _clean)
    clean.add_argument(
        "--older-than", type=_duration, default=30 * 86400.0, metavar="TIME", help="older than this (default 30d)"
    )


def _duration(text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def run(arguments: Namespace) -> int:
    """Does the action; the exit code."""
    try:
        config = arguments.outbox = _config(arguments)
        if config.database is None:
            return _fail("no database: pass --database, or write [outbox] database = … into xabridge.toml", Exit.USAGE)
        store = OutboxStore.at(config.database, Tables(schema=config.schema))
    except (ConfigurationError, XaError) as error:
        return _fail(error, Exit.USAGE)

    try:
        done: Exit = arguments.run_action(store, arguments)
    except (ConfigurationError, ValueError) as error:
        return _fail(error, Exit.USAGE)
    except (TablesError, BrokerAway, XaError) as error:
        return _fail(error, Exit.FAILED)
    except SQLAlchemyError as error:
        return _fail(str(error).splitlines()[0], Exit.FAILED)
    finally:
        store.close()
    return done


def _config(arguments: Namespace) -> OutboxConfig:
    """What the file says, and the flags above it. Without a file the flags do."""
    path = arguments.config or _DEFAULT_FILE
    there = arguments.config is not None or Path(path).exists()
    found = OutboxConfig.read(path) if there else OutboxConfig()
    return OutboxConfig(
        arguments.database or found.database,
        getattr(arguments, "broker", None) or found.broker,
        found.schema,
        found.relay,
        found.telemetry,
        found.log_format,
    )


def _fail(error: object, code: Exit) -> Exit:
    print(f"xabridge outbox: {escaped(masked(str(error)))}", file=sys.stderr)
    return code


def _relay(store: OutboxStore, arguments: Namespace) -> Exit:
    config: OutboxConfig = arguments.outbox
    if config.broker is None:
        raise ConfigurationError("no broker: pass --broker, or write [outbox] broker = … into xabridge.toml")
    metrics = None
    if config.telemetry:
        from xabridge.outbox.metrics import OutboxMetrics  # noqa: PLC0415 — needs OpenTelemetry

        metrics = OutboxMetrics(store)
    write_lines(config.log_format, logging.INFO, named=True)
    relay = Relay(store, config.broker, config.relay, metrics=metrics)
    if not arguments.once:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: relay.stop())
        relay.run()
        return Exit.DONE
    try:
        done = relay.run_once()
    finally:
        relay.close()
    if arguments.json:
        write_json({"sent": done.sent, "refused": done.refused, "set_aside": done.set_aside})
    else:
        print(f"{several(done.sent, 'message')} sent, {done.refused} refused, {done.set_aside} set aside")
    return Exit.FAILED if done.set_aside else Exit.DONE


def _status(store: OutboxStore, arguments: Namespace) -> Exit:
    figures = store.figures()
    if arguments.json:
        write_json({"waiting": figures.waiting, "refused": figures.refused, "oldest_s": figures.oldest_s})
    else:
        oldest = f", the oldest for {age(figures.oldest_s)}" if figures.waiting else ""
        print(f"{several(figures.waiting, 'message')} waiting{oldest}; {figures.refused} set aside")
    return Exit.FAILED if figures.refused else Exit.DONE


def _list(store: OutboxStore, arguments: Namespace) -> Exit:
    rows = store.rows(state=REFUSED if arguments.refused else None, limit=arguments.limit)
    if arguments.json:
        write_json({"messages": [_value(row) for row in rows]})
        return Exit.DONE
    for row in rows:
        key = f"  key {escaped(row.order_key)}" if row.order_key is not None else ""
        print(f"{row.id}  {row.state}  {escaped(row.destination)}  {escaped(row.message_id)}{key}")
        if row.reason is not None:
            print(f"    refused {row.attempts} ×: {escaped(row.reason)}")
    print(f"{several(len(rows), 'message')} listed")
    return Exit.DONE


def _value(row: OutboxRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "state": row.state,
        "destination": row.destination,
        "message_id": row.message_id,
        "key": row.order_key,
        "octets": row.octets,
        "created": row.created,
        "attempts": row.attempts,
        "retry_at": row.retry_at,
        "reason": row.reason,
    }


def _show(store: OutboxStore, arguments: Namespace) -> Exit:
    found = store.row(arguments.id)
    if found is None:
        return _fail(f"there is no message {arguments.id}: it was sent, or deleted", Exit.REFUSED)
    row, octets = found
    message = Message.from_octets(octets)
    if arguments.json:
        write_json(
            {
                **_value(row),
                "body": _shown(message.body),
                "properties": _shown(message.properties),
                "encoded": octets.hex(),
            }
        )
        return Exit.DONE

    for name, value in _value(row).items():
        if value is not None:
            print(f"{name:<12} {escaped(str(value))}")
    print(f"{'properties':<12} {escaped(repr(message.properties))}")
    print(f"{'body':<12} {escaped(repr(message.body))}")
    return Exit.DONE


def _shown(value: object) -> object:
    """A value as JSON has it, or else its representation."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


def _chosen(store: OutboxStore, arguments: Namespace) -> Sequence[int]:
    if arguments.refused == bool(arguments.ids):
        raise ConfigurationError("name the messages by their IDs, or pass --refused for all that were set aside")
    return store.refused_ids() if arguments.refused else list(arguments.ids)


def _retry(store: OutboxStore, arguments: Namespace) -> Exit:
    return _changed(store, arguments, _chosen(store, arguments), store.retry, "will be sent again")


def _delete(store: OutboxStore, arguments: Namespace) -> Exit:
    chosen = _chosen(store, arguments)
    if not arguments.dry_run and not arguments.yes:
        return _fail(f"{several(len(chosen), 'message')} would be lost: pass --yes", Exit.REFUSED)
    return _changed(store, arguments, chosen, store.delete, "deleted")


def _changed(
    store: OutboxStore, arguments: Namespace, chosen: Sequence[int], change: Callable[[Sequence[int]], int], what: str
) -> Exit:
    changed = sum(store.row(one) is not None for one in set(chosen)) if arguments.dry_run else change(chosen)
    missing = len(set(chosen)) - changed if arguments.ids else 0
    if arguments.json:
        write_json({"changed": changed, "missing": missing, "dry_run": arguments.dry_run})
    else:
        print(f"{several(changed, 'message')} {'would be changed' if arguments.dry_run else what}")
        if missing:
            print(f"{missing} of the IDs {'is' if missing == 1 else 'are'} not there: sent, or deleted")
    if changed or not chosen:
        return Exit.FAILED if missing else Exit.DONE
    return Exit.REFUSED


def _create(store: OutboxStore, arguments: Namespace) -> Exit:
    if arguments.dry_run:
        for statement in store.tables.statements(store.engine.dialect):
            print(f"{statement};")
        return Exit.DONE
    store.open(with_inbox=True)
    print("the tables are there")
    return Exit.DONE


def _clean(store: OutboxStore, arguments: Namespace) -> Exit:
    deleted = Inbox("xabridge", store.tables).delete_old(store.engine, arguments.older_than)
    print(f"{several(deleted, 'row')} of the inbox deleted")
    return Exit.DONE
