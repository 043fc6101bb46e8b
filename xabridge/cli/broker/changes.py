"""What `xabridge broker` changes: messages move, are copied, retried and purged; queues come, go, pause and go on;
connections are closed, and branches dropped; users get passwords and permissions.

Where something is lost the command asks before it does it. `--dry-run` only says what would be done.
"""

from __future__ import annotations

import getpass
import json
import sys
from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.conditions import Condition
from dtx.broker.access.credentials import MOST_KEPT_MS, CredentialsError, user_name, verifier_beside, verifier_of
from dtx.protocol.conditions import Refusal, RefusedError
from xa import Code, XaError
from xa.printable import escaped
from xabridge.cli.output import asks_for_yes, write_json
from xabridge.exit_codes import Exit
from xabridge.operations.broker_changes import HELD, KINDS, of_group, of_messages
from xabridge.text import age, several

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rm_amqp.management import ManagementClient


CHUNK: Final = 10_000
COPIED: Final = 500
"""Messages of one request: the broker answers in time, and ends with those that are under way if no one waits."""


def change_messages(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker move`, `copy`, `retry`, `purge QUEUE`: of messages that were chosen by their ids, or the first
    ones, or all that are there."""
    operation, ids = arguments.action, arguments.id
    target = {"to": arguments.to} if "to" in arguments else {}
    if arguments.group is not None:
        return _change_group(management, arguments, target)
    if not ids:
        return _change_queue(management, arguments, target)
    messages = management.pages("messages", key="position", queue=arguments.queue)
    found = Counter(one["state"] for one in messages if one["id"] in ids)
    missing = len(set(ids)) - sum(found.values())
    what = of_messages(operation, arguments.queue, found, missing=missing, **target)
    if not may(arguments, what, asks=KINDS[operation].loses):
        if arguments.dry_run:
            return Exit.FAILED if missing else Exit.DONE
        return Exit.REFUSED

    answer = management.ask(operation, queue=arguments.queue, ids=",".join(ids), most=arguments.most, **target)
    return _done(arguments, answer)


def _change_queue(management: ManagementClient, arguments: Namespace, target: Mapping[str, str]) -> Exit:
    """The same of a queue: of the messages that it has now, and none that comes later."""
    operation, queue, most = arguments.action, arguments.queue, arguments.most
    found = _queue(management, queue)
    there, held = int(found["depth"]), 0 if operation == "copy" else int(found["held"])
    shown = min(there - held, most or there)
    what = of_messages(operation, queue, {"available": shown, "held": 0 if most else held}, to=target.get("to", ""))
    if not may(arguments, what, asks=KINDS[operation].loses):
        return Exit.DONE if arguments.dry_run else Exit.REFUSED
    done, left = _change_shown(management, arguments, shown, there, until=found["until"], **target)

    if held and done == shown and not (most and shown):  # nothing has looked at those that were held
        held = min(held, int(_queue(management, queue)["held"]))
        left = {HELD: held} if held else {}
    return _done(arguments, {"done": done, "left": left})


def _queue(management: ManagementClient, name: str) -> Mapping[str, Any]:
    for found in management.ask("queues", queue=name):
        return dict(found)
    raise RefusedError(Refusal(Condition.NOT_FOUND, f"there is no queue {name!r}", Code.XAER_NOTA))


def _change_shown(
    management: ManagementClient, arguments: Namespace, shown: int, there: int, **wanted: str
) -> tuple[int, dict[str, int]]:
    """Changes as many messages as were shown, of the ones that were `there` then, some at a time: how many were done,
    and why others were not. Whatever ends it, stderr says how far it was."""
    done, left = 0, Counter[str]()
    portions: Iterable[dict[str, str]] = repeat({})
    if arguments.action == "copy":
        portions = _portions(management, arguments.queue, **wanted)

    try:
        for portion in portions:
            if done == shown:
                return done, {}
            most = min(CHUNK, shown - done)
            answer = management.ask(arguments.action, queue=arguments.queue, most=most, **wanted, **portion)
            done += answer["done"]
            if not portion:
                left.clear()
            left.update(answer["left"])
            if not portion and answer["done"] < most:
                break
    except (KeyboardInterrupt, RefusedError, XaError) as why:
        said = f"{several(done, 'message')} done"
        if not isinstance(why, RefusedError):
            said += "; the broker ends with those that are under way: `xabridge broker audit` says how many there were"
        sys.stderr.write(f"xabridge broker {arguments.action}: {said}\n")
        raise

    if done == shown:
        return done, {}
    missing = min(shown - done, there - done - sum(left.values()))
    return done, {**left, **({"not in the queue any more": missing} if missing > 0 else {})}


def _portions(
    management: ManagementClient, queue: str, *, until: str, group: str = "", **_: str
) -> Iterator[dict[str, str]]:
    """The ids of the messages that are to be copied, some at a time, because the next request would find them again."""
    ids: list[str] = []
    for one in management.pages("messages", key="position", queue=queue):
        if int(one["position"], 16) > int(until, 16):
            break
        if not group or one["dead-letter-group"] == group:
            ids.append(one["id"])
        if len(ids) == COPIED:
            yield {"ids": ",".join(ids)}
            ids = []
    if ids:
        yield {"ids": ",".join(ids)}


def _change_group(management: ManagementClient, arguments: Namespace, target: Mapping[str, str]) -> Exit:
    """The same of a group of dead letters: those that it has now, and none that comes later."""
    operation, queue = arguments.action, arguments.queue
    groups = management.pages("dead-letters", key="position", queue=queue)
    group = next((one for one in groups if one["id"] == arguments.group), None)
    if group is None:
        message = (
            f"there are no dead letters of the group {arguments.group} in {queue}: `dead {queue}` shows the groups"
        )
        raise RefusedError(Refusal(Condition.NOT_FOUND, message, Code.XAER_NOTA))

    there = int(group["letters"])
    shown = min(arguments.most or there, there)
    what = of_group(operation, {**group, "letters": shown}, **target)
    if not may(arguments, what, asks=KINDS[operation].loses):
        return Exit.DONE if arguments.dry_run else Exit.REFUSED
    about = {"group": group["id"], "until": group["until"], **target}
    done, left = _change_shown(management, arguments, shown, there, **about)
    return _done(arguments, {"done": done, "left": left})


def _done(arguments: Namespace, answer: Mapping[str, Any]) -> Exit:
    left: Mapping[str, int] = answer["left"]
    if arguments.json:
        write_json({"done": answer["done"], "left": dict(left)})
    else:
        print(f"{several(answer['done'], 'message')} done")
        for why, count in left.items():
            print(f"{count} left: {escaped(why)}")
    return Exit.FAILED if left else Exit.DONE


# -- everything else
def create(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker create QUEUE`."""
    return change(management, arguments, "create-queue", f"create {arguments.queue}", queue=arguments.queue)


SETTINGS: Final = {
    "max_depth": "the most messages",
    "max_octets": "the most octets of messages, 0 for any number",
    "max_deliveries": "deliveries without success after which a message is a dead letter, 0 for never",
    "ttl_ms": "the time to live of messages that say none, 0 for no end",
}
"""The settings of a queue that are numbers, and what they mean."""


def configure(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker configure QUEUE`."""
    settings = {name: getattr(arguments, name) for name in (*SETTINGS, "when_full")}
    settings = {name: value for name, value in settings.items() if value is not None}
    what = f"configure {arguments.queue}: " + ", ".join(f"{name} = {value}" for name, value in settings.items())
    return change(management, arguments, "configure-queue", what, queue=arguments.queue, **settings)


def delete(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker delete QUEUE`."""
    kind, queue, force = KINDS["delete-queue"], arguments.queue, arguments.force
    what = kind.said(queue=queue) + (" with its messages, and close its links" if force else "")
    return change(management, arguments, kind.operation, what, asks=kind.loses, queue=queue, force=force)


def change_as_named(operation: str) -> Callable[[ManagementClient, Namespace], Exit]:
    """The action that carries out a change whose sentence says all of it."""
    kind = KINDS[operation]

    def run(management: ManagementClient, arguments: Namespace) -> Exit:
        about = {name: getattr(arguments, name) for name in kind.about}
        return change(management, arguments, operation, kind.said(**about), asks=kind.loses, **about)

    return run


def set_password(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker set-password USER`. The broker gets a verifier, and never the password."""
    if arguments.revoke_now:
        return change_as_named("revoke-old-password")(management, arguments)
    kept_s: float | None = arguments.keep_old
    what = f"set the password of {arguments.user}"
    if kept_s is not None:
        what += f"; the old one is valid for another {age(kept_s)}"
    if kept_s is not None and not 0 < kept_s * 1000 <= MOST_KEPT_MS:
        sys.stderr.write("xabridge broker set-password: --keep-old is more than 0 s and at most 30 d\n")
        return Exit.USAGE
    if arguments.dry_run:
        if kept_s is not None:
            _check_has_one_password(management, arguments.user)
        may(arguments, what, asks=False)
        return Exit.DONE

    more: dict[str, Any] = {}
    try:
        name = user_name(arguments.user)
        if kept_s is None:
            verifier = verifier_of(name, _typed_password(name))
        else:
            like = management.ask("user-salt", user=name)
            verifier = verifier_beside(name, _typed_password(name), like["salt"], like["iterations"])
            more = {"keep_old_ms": round(kept_s * 1000)}
    except CredentialsError as error:
        sys.stderr.write(f"xabridge broker set-password: {error}\n")
        return Exit.USAGE
    return change(management, arguments, "set-user", what, user=name, verifier=str(verifier), **more)


def _check_has_one_password(management: ManagementClient, user: str) -> None:
    """RefusedError: the broker would not keep the present password beside a new one, as it says itself."""
    management.ask("user-salt", user=user)
    found = next(one for one in management.pages("users", key="name") if one["name"] == user)
    if found["old-password-left-ms"] is not None:
        message = f"{user} has two passwords already: end the old one first (set-password --revoke-now)"
        raise RefusedError(Refusal(Condition.ILLEGAL_STATE, message, Code.XAER_PROTO))


def _typed_password(user: str) -> str:
    typed = sys.stdin.isatty()
    return getpass.getpass(f"password of {user}: ") if typed else sys.stdin.readline().rstrip("\n")


def permit(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker permit USER …`."""
    given: dict[str, Any] = {name: getattr(arguments, name) for name in ("consume", "produce", "create", "coordinate")}
    given |= {name: getattr(arguments, name) for name in ("view", "manage", "read_payload")}
    rule = {name: value for name, value in given.items() if value and value != "none"}
    shown = json.dumps(rule, ensure_ascii=False)
    what = f"let {arguments.user} do this and nothing else: {shown}"
    return change(management, arguments, "set-permissions", what, user=arguments.user, rule=shown)


def change(
    management: ManagementClient, arguments: Namespace, operation: str, what: str, *, asks: bool = False, **values: Any
) -> Exit:
    """Has the broker change something, unless it is not to be done."""
    if not may(arguments, what, asks=asks):
        return Exit.DONE if arguments.dry_run else Exit.REFUSED
    management.ask(operation, **values)
    if arguments.json:
        write_json({"done": True, "left": {}})
    else:
        print(f"done: {escaped(what)}")
    return Exit.DONE


def may(arguments: Namespace, what: str, *, asks: bool) -> bool:
    """Whether it is to be done. Says what would be done in a dry run; asks where something is lost."""
    if arguments.dry_run:
        if arguments.json:
            write_json({"would": what})
        else:
            print(f"would {escaped(what)}")
        return False
    if not asks or arguments.yes:
        return True
    if not sys.stdin.isatty():
        sys.stderr.write(f"xabridge broker: {escaped(what)}: not a terminal: pass --yes; nothing was done\n")
        return False
    if asks_for_yes(escaped(what)):
        return True
    sys.stderr.write("nothing was done\n")
    return False
