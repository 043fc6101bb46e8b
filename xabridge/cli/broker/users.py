"""`xabridge broker users`, `set-password`, `remove-user`, `permit` and `forbid`: who may connect, and do what."""

from __future__ import annotations

import getpass
import json
import sys
from typing import TYPE_CHECKING, Any

from dtx.broker.access.credentials import CredentialsError, user_name, verifier_of
from xabridge.cli.broker import tables
from xabridge.cli.broker.changing import change, may
from xabridge.cli.broker.views import shown
from xabridge.exit_codes import Exit

if TYPE_CHECKING:
    from argparse import Namespace

    from rm_amqp.management import ManagementClient


def users(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker users`."""
    return shown(
        management, arguments, lambda: list(management.pages("users", key="name")), lambda found, _: tables.users(found)
    )  # fmt: skip


def set_password(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker set-password USER`. The broker gets a verifier, and never the password."""
    what = f"set the password of {arguments.user}"
    if arguments.dry_run:
        may(arguments, what, asks=False)
        return Exit.DONE
    typed = sys.stdin.isatty()
    password = getpass.getpass(f"password of {arguments.user}: ") if typed else sys.stdin.readline().rstrip("\n")
    try:
        name = user_name(arguments.user)
        verifier = verifier_of(name, password)
    except CredentialsError as error:
        sys.stderr.write(f"xabridge broker set-password: {error}\n")
        return Exit.USAGE
    return change(management, arguments, "set-user", what, user=name, verifier=str(verifier))


def permit(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker permit USER …`."""
    given: dict[str, Any] = {name: getattr(arguments, name) for name in ("consume", "produce", "create", "coordinate")}
    given |= {name: getattr(arguments, name) for name in ("view", "manage", "read_payload")}
    rule = {name: value for name, value in given.items() if value and value != "none"}
    told = json.dumps(rule, ensure_ascii=False)
    what = f"let {arguments.user} do this and nothing else: {told}"
    return change(management, arguments, "set-permissions", what, user=arguments.user, rule=told)
