"""The table `[console]` of xabridge.toml.

    [console]
    listen = "127.0.0.1:8161"
    idle_s = 1800

    [console.brokers]
    orders = "amqps://broker:5671/?ca=/etc/xabridge/ca.pem"

A broker's URL is an open string. With a user in it, the console watches that broker as this user also while no user is
signed in; pages never use that user. Without `[console.brokers]` the brokers are those of `[resources]`.

    [console.nodes]
    orders-1 = { url = "http://orders-1:9464", token_env = "NODE_TOKEN", act_token_env = "NODE_ACT_TOKEN" }

Its pipelines are those of `[pipeline] log` in the same file (`xabridge.pipeline.settings`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from rm_amqp.settings import parse
from xa import XaError
from xa.configuration import FLAG, HOST_AND_PORT, TEXT, Section, declared, read_file, seconds, setting, texts, whole
from xa.open_string import PASSWORD_ENV, OpenString, host_and_port
from xa.secrets import expanded, hide, not_set
from xabridge.console.browser import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_BROKER: Final = "amqp://127.0.0.1:5672"
CONNECT_S: Final = 3
"""How long the attempt to reach a broker takes, unless its URL says otherwise."""
ANSWER_S: Final = 10
"""How long a broker may take for an answer, unless its URL says otherwise."""
MOST: Final = 10_000_000
TIME: Final = seconds(below=MOST)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,40}")
_OF_A_CERTIFICATE: Final = frozenset({"cert", "key"})


@dataclass(frozen=True, slots=True)
class WatchedBroker:
    """A broker by its name. `watch` is its open string with the user of the configuration, None if that names none."""

    name: str
    url: str
    watch: str | None = field(default=None, repr=False)

    def as_user(self, user: str, password: str) -> str:
        """The open string for a user who has signed in. Without a user's name it has no user, and no certificate of the
        configuration is presented either."""
        found = OpenString.parse(self.url)
        return (found if user else found.without(_OF_A_CERTIFICATE)).as_user(user, password).url


@dataclass(frozen=True, slots=True)
class NodeTable:
    """An entry of `[console.nodes]`."""

    url: str = field(repr=False, metadata=declared(TEXT, "a URL of http or https", secret=True))
    token_env: str = field(metadata=declared(TEXT, "the environment variable with its token"))
    act_token_env: str | None = setting(None, TEXT, "the environment variable with what lets the console act there")


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

    listen: str = setting("127.0.0.1:8161", HOST_AND_PORT, "host and port; a port alone is on this machine")
    brokers: tuple[WatchedBroker, ...] = setting(
        (WatchedBroker("broker", DEFAULT_BROKER),),
        None,
        "a table: the name of each broker, and its [open string](amqp-client.md#the-open-string)",
        unset=f"the AMQP brokers of `[resources]`, or `{DEFAULT_BROKER}`",
    )
    nodes: tuple[WatchedNode, ...] = setting(
        (),
        None,
        'a table: the name of each node, and `{ url = "http://host:9464", token_env = "NAME" }`, the environment '
        'variable with its token; with `act_token_env = "NAME"` the console may act there',
        unset="none",
    )
    hosts: tuple[str, ...] = setting(
        (),
        texts("names"),
        "other names by which browsers call the console; a request to any other name is refused",
        unset="none",
    )
    proxies: tuple[str, ...] = setting(
        (),
        texts("addresses"),
        "addresses of proxies that are believed in X-Forwarded-For: it says the browser's address for the audit log, "
        "and which sign-ins wait for each other",
        unset="none",
    )
    certificate: str = setting("", TEXT, "the console's certificate, a PEM file: it speaks HTTPS")
    key: str = setting("", TEXT, "the key of the certificate, a PEM file")
    https: bool = setting(False, FLAG, "a proxy in front of the console speaks HTTPS, and passes the header Host on")
    idle_s: float = setting(1800.0, TIME, "seconds after which an unused session ends")
    session_s: float = setting(43_200.0, TIME, "seconds after which a session ends in any case")
    sessions: int = setting(100, whole(1, MOST - 1), "the most sessions; one more ends the one that was idle longest")
    pipelines: WatchedPipelines | None = None

    @property
    def trusted(self) -> frozenset[str]:
        """The proxies, in the form of `address_of`."""
        return frozenset(map(address_of, self.proxies))

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return host_and_port(self.listen)

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


def console_settings(
    path: Path | None, environment: Mapping[str, str] = os.environ, **flags: object
) -> ConsoleSettings:
    """The settings in the file, if there is one, and those of `flags` that are not None; ConfigurationError says what
    is wrong."""
    file = Section({}, environment=environment) if path is None else read_file(path, environment)
    section = file.table("console", flags)
    brokers = section.table("brokers")
    if "brokers" not in section.content:
        found = _of_resources(file.table("resources"), environment)
    elif brokers.content:
        found = tuple(_broker(brokers, name, url, environment) for name, url in brokers.content.items())
    else:
        raise section.wrong("brokers", 'expected at least one broker: name = "amqp://…"')

    others: dict[str, Any] = {"brokers": found} if found else {}
    nodes = section.table("nodes")
    others["nodes"] = tuple(_node(nodes, name, node, environment) for name, node in nodes.tables())
    if path is not None:
        others["pipelines"] = _pipelines(path, file, environment)
    made: ConsoleSettings = section.read(ConsoleSettings, **others)
    _check_listening(made, section)
    return made


def _check_listening(made: ConsoleSettings, section: Section) -> None:
    host, _ = made.address
    wrong = [one for one in made.proxies if not address_of(one)]
    if wrong:
        raise section.wrong("proxies", f"{wrong[0]!r} is no IP address")
    if bool(made.certificate) != bool(made.key):
        raise section.wrong("key" if made.certificate else "certificate", "certificate and key are given together")
    if not made.secure and not _is_loopback(host):
        raise section.wrong(
            "listen",
            f"{host} is reached from other machines, and without TLS passwords would be sent in the clear. Set "
            "certificate and key, or https = true if a proxy in front of the console does TLS",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _of_resources(resources: Section, environment: Mapping[str, str]) -> tuple[WatchedBroker, ...]:
    """The brokers among the resources, without the users that the application has there."""
    found = []
    for name, value in resources.content.items():
        url = value.get("url") if isinstance(value, dict) else value
        if isinstance(url, str) and url.partition("://")[0] in {"amqp", "amqps"} and _NAME.fullmatch(name):
            made = _broker(resources, name, url, environment)
            found.append(WatchedBroker(made.name, made.url))
    return tuple(found)


def _broker(brokers: Section, name: str, url: object, environment: Mapping[str, str]) -> WatchedBroker:
    if not _NAME.fullmatch(name):
        raise brokers.wrong(name, "a broker's name has up to 40 letters, digits and . _ -")
    if not isinstance(url, str):
        raise brokers.misfit(name, f'a URL: {name} = "amqp://host"')
    try:
        whole_url = _with_patience(expanded(url, environment))
        settings = parse(whole_url, environment)
    except KeyError as error:
        raise brokers.wrong(name, not_set(error.args[0])) from None
    except XaError as error:
        raise brokers.wrong(name, error.message) from error
    bare = OpenString.parse(whole_url).without({PASSWORD_ENV}).as_user("", None).url
    return WatchedBroker(name, bare, whole_url if settings.user else None)


def _node(nodes: Section, name: str, section: Section, environment: Mapping[str, str]) -> WatchedNode:
    if not _NAME.fullmatch(name):
        raise nodes.wrong(name, "a node's name has up to 40 letters, digits and . _ -")
    node = section.read(NodeTable)
    try:
        parts = urlsplit(node.url)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        good = False
    one_word = node.url.isascii() and node.url.isprintable() and " " not in node.url
    if not good or parts.query or parts.fragment or not one_word:
        raise section.wrong("url", "expected a URL of http or https with host and port alone, like http://host:9464")

    token = _token(section, "token_env", node.token_env, environment)
    act_token = "" if node.act_token_env is None else _token(section, "act_token_env", node.act_token_env, environment)
    return WatchedNode(name, node.url, token, act_token)


def _token(section: Section, key: str, variable: str, environment: Mapping[str, str]) -> str:
    token = environment.get(variable, "")
    if not token:
        raise section.wrong(key, not_set(variable))
    hide(token)
    if not (token.isascii() and token.isprintable()):
        raise section.wrong(key, "the token in that environment variable is not printable ASCII")
    return token


def _pipelines(path: Path, file: Section, environment: Mapping[str, str]) -> WatchedPipelines | None:
    """The pipelines that keep their decisions in `[pipeline] log`, or in the node's own log if that is a database."""
    if "pipeline" not in file.content and "log" not in file.content:
        return None
    from xabridge.pipeline.core import PipelineError  # noqa: PLC0415 — only where there may be pipelines
    from xabridge.pipeline.settings import DATABASE, settings_from  # noqa: PLC0415 — as above

    own, node_log = "log" in file.table("pipeline").content, file.content.get("log")
    if not own and not (isinstance(node_log, str) and DATABASE.match(node_log)):
        return None
    try:
        settings = settings_from("status", None, {}, str(path), environment)
    except PipelineError as error:  # which does not concern the brokers
        return WatchedPipelines("", trouble=str(error))
    return WatchedPipelines(settings.log, settings.resources)


def _with_patience(url: str) -> str:
    """The URL with times that suit a person who waits."""
    try:
        return OpenString.parse(url).with_options(connect_timeout=CONNECT_S, timeout=ANSWER_S).url
    except ValueError:
        return url  # the reader of it says why
