"""The table `[console]` of xabridge.toml.

    [console]
    listen = "127.0.0.1:8161"
    idle_s = 1800

    [console.brokers]
    orders = "amqps://broker:5671/?ca=/etc/xabridge/ca.pem"

A broker's URL is an open string. With a user in it, the console watches that broker as this user also while nobody is
signed in; pages never use that user. Without `[console.brokers]` the brokers are those of `[resources]`.

    [console.nodes]
    orders-1 = { url = "http://orders-1:9464", token_env = "NODE_TOKEN", act_token_env = "NODE_ACT_TOKEN" }

Its pipelines are those of `[pipeline] log` in the same file (`xabridge.pipeline.settings`).
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from rm_amqp.settings import parse
from tm.resources import ConfigurationError
from xa import XaError
from xa.open_string import PASSWORD_ENV, OpenString
from xa.secrets import expanded, hide, not_set

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_BROKER: Final = "amqp://127.0.0.1:5672"
CONNECT_S: Final = 3
"""How long the attempt to reach a broker takes, unless its URL says otherwise."""
ANSWER_S: Final = 10
"""How long a broker may take for an answer, unless its URL says otherwise."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,40}")
_OF_A_CERTIFICATE: Final = frozenset({"cert", "key"})


@dataclass(frozen=True, slots=True)
class WatchedBroker:
    """A broker by its name. `watch` is its open string with the user of the configuration, None if that names none."""

    name: str
    url: str
    watch: str | None = field(default=None, repr=False)

    def as_user(self, user: str, password: str) -> str:
        """The open string for somebody who has signed in; without a user's name, nobody's: then no certificate of the
        configuration is shown either."""
        found = OpenString.parse(self.url)
        return (found if user else found.without(_OF_A_CERTIFICATE)).as_user(user, password).url


@dataclass(frozen=True, slots=True)
class WatchedNode:
    """A node by its name: where its `http` answers, what opens its page `/node`, and what lets the console act there;
    without `act_token` it only looks."""

    name: str
    url: str
    token: str = field(repr=False)
    act_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class WatchedPipelines:
    """The pipelines of the configuration: the log that decides them, and its resource managers. `trouble`: why they
    can't be asked."""

    log: str = field(repr=False)
    resources: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings. Times in seconds."""

    listen: str = "127.0.0.1:8161"
    hosts: tuple[str, ...] = ()
    certificate: str = ""
    key: str = ""
    https: bool = False
    idle_s: float = 1800.0
    session_s: float = 43_200.0
    sessions: int = 100
    brokers: tuple[WatchedBroker, ...] = field(default=(WatchedBroker("broker", DEFAULT_BROKER),))
    nodes: tuple[WatchedNode, ...] = ()
    pipelines: WatchedPipelines | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    @property
    def secure(self) -> bool:
        """Whether browsers reach it by HTTPS, so that its cookies are for HTTPS only."""
        return self.https or bool(self.certificate)

    @property
    def names(self) -> frozenset[str]:
        """The hosts by which it may be called; any other is a page of somebody else's that wants to be taken for it."""
        host, _ = self.address
        own = {host} if host not in {"0.0.0.0", "::"} else set()  # noqa: S104 — compared, not listened at
        return frozenset({"127.0.0.1", "localhost", "::1", *own, *self.hosts})


_TABLES: Final = frozenset({"brokers", "nodes"})
_PLAIN: Final = {one.name: one.type for one in fields(ConsoleSettings) if one.name not in {*_TABLES, "pipelines"}}


def console_settings(
    path: Path | None, environment: Mapping[str, str] = os.environ, **flags: object
) -> ConsoleSettings:
    """The settings in the file, if there is one, and those of `flags` that are not None; ConfigurationError says what
    is wrong."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path}: {error}") from error
    section = table.get("console", {})
    if not isinstance(section, dict):
        raise ConfigurationError("console: expected a table")

    told = {**section, **{name: value for name, value in flags.items() if value is not None}}
    brokers, nodes = told.pop("brokers", None), told.pop("nodes", {})
    for name, value in told.items():
        _check(name, value)
    if brokers is None:
        found = _of_resources(table.get("resources", {}), environment)
    elif isinstance(brokers, dict) and brokers:
        found = tuple(_broker(name, url, environment) for name, url in brokers.items())
    else:
        raise ConfigurationError('console.brokers: expected a table with at least one broker: name = "amqp://…"')

    if not isinstance(nodes, dict):
        raise ConfigurationError("console.nodes: expected a table")
    told["nodes"] = tuple(_node(name, node, environment) for name, node in nodes.items())
    told["hosts"] = tuple(told.get("hosts", ()))
    if found:
        told["brokers"] = found
    if path is not None:
        told["pipelines"] = _pipelines(path, table, environment)
    made = ConsoleSettings(**told)
    _check_listening(made)
    return made


def _check(name: str, value: object) -> None:
    where = f"console.{name}"
    expected = _PLAIN.get(name)
    if expected is None:
        raise ConfigurationError(f"{where}: unknown; known are {', '.join(sorted([*_PLAIN, *_TABLES]))}")

    if name == "hosts":
        good = isinstance(value, list) and all(isinstance(one, str) for one in value)
        words = "a list of names"
    elif expected == "bool":
        good, words = isinstance(value, bool), "true or false"
    elif expected == "str":
        good, words = isinstance(value, str), "text"
    else:
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 10_000_000
        good = good and (expected != "int" or isinstance(value, int))
        words = "a number above 0"
    if not good:
        raise ConfigurationError(f"{where}: expected {words}, not {value!r}")


def _check_listening(made: ConsoleSettings) -> None:
    host, _, digits = made.listen.rpartition(":")
    if not host or not digits.isascii() or not digits.isdecimal() or len(digits) > 5 or int(digits) > 65_535:
        raise ConfigurationError(f"console.listen: {made.listen!r}: expected host:port")
    host, _ = made.address
    if bool(made.certificate) != bool(made.key):
        raise ConfigurationError("console: certificate and key are given together")
    if not made.secure and not _is_loopback(host):
        raise ConfigurationError(
            f"console.listen: {host} is reached from other machines, and without TLS passwords would be sent in the "
            "clear. Set certificate and key, or https = true if a proxy in front of the console does TLS"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _of_resources(resources: object, environment: Mapping[str, str]) -> tuple[WatchedBroker, ...]:
    """The brokers among the resources, without the users that the application has there."""
    found = []
    for name, value in resources.items() if isinstance(resources, dict) else ():
        url = value.get("url") if isinstance(value, dict) else value
        if isinstance(url, str) and url.partition("://")[0] in {"amqp", "amqps"} and _NAME.fullmatch(name):
            made = _broker(name, url, environment)
            found.append(WatchedBroker(made.name, made.url))
    return tuple(found)


def _broker(name: str, url: object, environment: Mapping[str, str]) -> WatchedBroker:
    where = f"console.brokers.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: a broker's name has up to 40 letters, digits and . _ -")
    if not isinstance(url, str):
        raise ConfigurationError(f'{where}: expected a URL: {name} = "amqp://host"')
    try:
        whole = _with_patience(expanded(url, environment))
        settings = parse(whole, environment)
    except KeyError as error:
        raise ConfigurationError(f"{where}: {not_set(error.args[0])}") from None
    except XaError as error:
        raise ConfigurationError(f"{where}: {error.message}") from error
    bare = OpenString.parse(whole).without({PASSWORD_ENV}).as_user("", None).url
    return WatchedBroker(name, bare, whole if settings.user else None)


def _node(name: str, told: object, environment: Mapping[str, str]) -> WatchedNode:
    where = f"console.nodes.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: a node's name has up to 40 letters, digits and . _ -")
    keys = {"url", "token_env"}
    if not isinstance(told, dict) or set(told) - {"act_token_env"} != keys or not all(map(_is_text, told.values())):
        raise ConfigurationError(
            f'{where}: expected {{ url = "http://host:9464", token_env = "NODE_TOKEN" }}, and act_token_env = "…" for '
            "a node through which the console may act"
        )

    url = told["url"]
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and url.isascii()
    except ValueError:
        good = False
    if not good or parts.username is not None or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise ConfigurationError(
            f"{where}: expected a URL of http or https with host and port alone, like http://host:9464"
        )
    token = _token(where, told["token_env"], environment)
    act_token = _token(where, told["act_token_env"], environment) if "act_token_env" in told else ""
    return WatchedNode(name, url, token, act_token)


def _token(where: str, variable: str, environment: Mapping[str, str]) -> str:
    token = environment.get(variable, "")
    if not token:
        raise ConfigurationError(f"{where}: {not_set(variable)}")
    hide(token)
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError(f"{where}: the token in that environment variable is not printable ASCII")
    return token


def _pipelines(path: Path, table: dict[str, Any], environment: Mapping[str, str]) -> WatchedPipelines | None:
    """The pipelines that keep their decisions in `[pipeline] log`, or in the node's own log if that is a database."""
    section, node_log = table.get("pipeline", {}), table.get("log")
    own = section.get("log") if isinstance(section, dict) else None
    if own is None and node_log is None:
        return None
    from xabridge.pipeline.core import PipelineError  # noqa: PLC0415 — only where there may be pipelines
    from xabridge.pipeline.settings import DATABASE, settings_from  # noqa: PLC0415 — as above

    if own is None and not (isinstance(node_log, str) and DATABASE.match(node_log)):
        return None
    try:
        settings = settings_from("status", None, {}, str(path), environment)
    except PipelineError as error:  # which does not concern the brokers
        return WatchedPipelines("", trouble=str(error))
    return WatchedPipelines(settings.log, settings.resources)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _with_patience(url: str) -> str:
    """The URL with times that suit a person who waits."""
    try:
        return OpenString.parse(url).with_options(connect_timeout=CONNECT_S, timeout=ANSWER_S).url
    except ValueError:
        return url  # whoever reads it says why
