"""Permissions at the broker: a table of rules, one per identity.

An access ticket in AMQP 1.0 is the connection's authenticated identity. Its rules are the one with its name,
and that of `*`, everybody who said who they are; `anonymous` is the rule of those who did not. Addresses are
given as patterns in which * stands for any text, even none. What no rule allows is refused.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.sasl.mechanisms import RESERVED
from xa.configuration import FLAG, ConfigurationError, Section, member, setting, texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dtx.amqp.sasl.mechanisms import Identity

EVERYBODY: Final = "*"
ANONYMOUS: Final = "anonymous"
PATTERNS: Final = texts("address patterns")


class PermissionsError(Exception):
    """The table of permissions is wrong. The message says where."""


class Action(Enum):
    """An action on an address."""

    CONSUME = "consume"
    PRODUCE = "produce"
    CREATE = "create"


class Coordination(Enum):
    """Which branches an identity may prepare, complete, list and read."""

    NONE = "none"
    OWN = "own"
    ALL = "all"


class Management(Enum):
    """A permission at the management node. A user that may manage may look."""

    VIEW = "view"
    MANAGE = "manage"
    READ_PAYLOAD = "read_payload"

    @property
    def phrase(self) -> str:
        """The permission as a verb, for the sentence that refuses it."""
        return "read messages by management of" if self is Management.READ_PAYLOAD else self.value


@dataclass(frozen=True, slots=True)
class Rule:
    """The permissions of one identity; patterns of addresses for each action."""

    consume: tuple[str, ...] = setting(
        (), PATTERNS, "a list of addresses that NAME may receive from; `*` in them stands for any text", unset="none"
    )
    produce: tuple[str, ...] = setting((), PATTERNS, "the same of those that NAME may send to", unset="none")
    create: tuple[str, ...] = setting((), PATTERNS, "the same of those that NAME may make by first use", unset="none")
    coordinate: Coordination = setting(
        Coordination.NONE, member(Coordination), "of which branches: [below](broker.md#who-may-do-what)"
    )
    view: bool = setting(False, FLAG, "may look by [management](broker.md#management)")
    manage: bool = setting(False, FLAG, "may look, and change what management can change")
    read_payload: bool = setting(False, FLAG, "may read the content of messages by management")

    def allows(self, action: Action, address: str) -> bool:
        """Whether one of the patterns for `action` fits `address`."""
        patterns: tuple[str, ...] = getattr(self, action.value)
        return any(fits(pattern, address) for pattern in patterns)


EVERYTHING: Final = Rule(("*",), ("*",), ("*",), Coordination.ALL, view=True, manage=True, read_payload=True)


def fits(pattern: str, address: str) -> bool:
    """Whether an address is one that the pattern names, in which * stands for any text."""
    first, *parts = pattern.split("*")
    if not parts:
        return pattern == address
    *inner, last = parts
    position, end = len(first), len(address) - len(last)
    if not address.startswith(first) or not address.endswith(last):
        return False
    for part in inner:  # the leftmost place leaves the most room for the rest
        position = address.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return position <= end


class Permissions:
    """The table."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = dict(rules)

    @property
    def rules(self) -> Mapping[str, Rule]:
        """The rules that hold, by name."""
        return self._rules

    def set(self, name: str, rule: Rule | None) -> None:
        """From now on this is the rule of `name`; None: there is none."""
        if rule is None:
            self._rules.pop(name, None)
        else:
            self._rules[name] = rule

    def _of(self, identity: Identity) -> list[Rule]:
        names = (ANONYMOUS,) if identity.is_anonymous else (identity.name, EVERYBODY)
        if identity.name in RESERVED:  # of a certificate, say: no user has this name
            names = (EVERYBODY,)
        return [self._rules[name] for name in names if name in self._rules]

    def may(self, identity: Identity, action: Action, address: str) -> bool:
        """Whether `identity` may do this at `address`."""
        return any(rule.allows(action, address) for rule in self._of(identity))

    def may_coordinate(self, identity: Identity, owner: str) -> bool:
        """Whether `identity` may complete, see and read a branch of `owner`, the name of an identity."""
        for rule in self._of(identity):
            granted = rule.coordinate
            if granted is Coordination.ALL or (granted is Coordination.OWN and identity.name == owner):
                return True
        return False

    def may_coordinate_all(self, identity: Identity) -> bool:
        """Whether `identity` may complete everybody's branches."""
        return any(rule.coordinate is Coordination.ALL for rule in self._of(identity))

    def may_manage(self, identity: Identity, needs: Management) -> bool:
        """Whether `identity` may ask the management node for what needs this."""
        rules = self._of(identity)
        if needs is Management.READ_PAYLOAD:
            return any(rule.read_payload for rule in rules)
        return any(rule.manage or (needs is Management.VIEW and rule.view) for rule in rules)

    @classmethod
    def from_section(cls, section: Section) -> Permissions:
        """The table as the configuration has it: name → the settings of a Rule. ConfigurationError."""
        return cls({name: rule.read(Rule) for name, rule in section.tables()})


def section_of(rule: Rule) -> dict[str, Any]:
    """The rule as the configuration has it, without what is not allowed."""
    details: dict[str, Any] = {
        one.name: list(value) if isinstance(value := getattr(rule, one.name), tuple) else value for one in fields(rule)
    }
    details["coordinate"] = rule.coordinate.value
    return {name: value for name, value in details.items() if value and value != Coordination.NONE.value}


def rule_of_json(name: str, text: str) -> Rule:
    """The rule of `name` as management sends it: as the configuration has it, in JSON. PermissionsError."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PermissionsError(f"permissions of {name!r}: not JSON: {error}") from None
    return rule_from(name, given)


def rule_from(name: str, given: Any) -> Rule:
    """The rule of `name` as the configuration has it; PermissionsError says what is wrong with it. Variables are no
    matter of its sender."""
    try:
        return Section({name: given}, "permissions").table(name).read(Rule)
    except ConfigurationError as error:
        raise PermissionsError(str(error)) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens at `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_to_this_machine(hosts: Sequence[str]) -> tuple[Permissions, str]:
    """The table of a broker without users, and the sentence that says so; PermissionsError where others than
    this machine could reach it."""
    reachable = [host for host in hosts if not is_loopback(host)]
    if reachable:
        raise PermissionsError(
            f"no users are configured, and the broker listens on {', '.join(reachable)}: everybody could do "
            "everything. Configure users and permissions, or listen on 127.0.0.1"
        )
    notice = f"no users are configured: everybody on this machine may do everything ({', '.join(hosts)})"
    return Permissions({ANONYMOUS: EVERYTHING}), notice


def open_to_users(hosts: Sequence[str]) -> tuple[Permissions, str]:
    """The table of a broker that knows who its peers are, and has no other rule; and the sentence that
    says so. PermissionsError where others than this machine could reach it."""
    reachable = [host for host in hosts if not is_loopback(host)]
    if reachable:
        raise PermissionsError(
            f"no permissions are configured, and the broker listens on {', '.join(reachable)}: every user could do "
            "everything. Configure [broker.permissions.NAME] for each user, or listen on 127.0.0.1"
        )
    notice = "no permissions are configured: every authenticated client may do everything"
    return Permissions({EVERYBODY: EVERYTHING}), notice
