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

`${NAME}` in any text stands for the environment variable NAME: secrets don't belong into the file. In a URL its value
is encoded, so that a password may hold any character; a URL that is wholly `${NAME}` is taken as it is.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Final

from tm.resources import ConfigurationError, ResourceConfig
from xa import check_node
from xa.open_string import host_and_port
from xa.secrets import expanded, not_set
from xa.telemetry.log_lines import FORMATS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_KEYS: Final = {
    "node",
    "log",
    "decider",
    "timeout_s",
    "recovery_interval_s",
    "resources",
    "telemetry",
    "http",
    "http_token_env",
    "http_act_token_env",
    "log_format",
}
_RESOURCE_KEYS: Final = {"url", "mode"}
_OTHERS: Final = {"broker", "console", "pipeline", "demo", "outbox"}
"""Tables that other commands read."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of the transaction manager in a configuration file."""

    node: str
    log: str | None = field(repr=False)
    resources: Mapping[str, str | ResourceConfig] = field(repr=False)
    timeout_s: float = 60.0
    recovery_interval_s: float = 10.0
    decider: str | None = None
    telemetry: bool = False
    http: str | None = None
    """Where a manager answers probes and Prometheus."""
    http_token_env: str | None = None
    """The environment variable with what opens the page `/node` there. Only a manager needs its value."""
    http_act_token_env: str | None = None
    """The environment variable with what lets somebody finish transactions there by hand. Only a manager needs its
    value."""
    log_format: str = "text"
    """How commands of this configuration write log lines."""


def configuration_from(path: str | Path, environment: Mapping[str, str] | None = os.environ) -> Configuration:
    """The configuration in the file `path`. `environment`: None leaves its variables as they are."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path}: no such file; write one, or pass --config") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not TOML, which is UTF-8: {error}") from error
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with too many digits, and of what is nested deep
        raise ConfigurationError(f"{path}: not TOML: {error}") from error
    return _Reader(path, environment).configuration(table)


class _Reader:
    def __init__(self, path: Path, environment: Mapping[str, str] | None) -> None:
        self._path = path
        self._environment = environment

    def configuration(self, table: Mapping[str, Any]) -> Configuration:
        for key in table:
            if key not in _KEYS | _OTHERS:
                raise self._unknown(key, key, _KEYS | _OTHERS)

        node = self._text(table, "node")
        if node is None:
            raise self._wrong("node", 'missing; give this node an id that stays the same: node = "orders-1"')
        node = self._expanded("node", node)
        try:
            check_node(node)
        except ValueError as error:
            raise self._wrong("node", str(error)) from error

        resources = table.get("resources", {})
        if not isinstance(resources, dict):
            raise self._wrong("resources", 'expected a table: [resources], then name = "url"')
        log = self._text(table, "log")
        return Configuration(
            node,
            None if log is None else self._expanded("log", log),
            {name: self._resource(name, value) for name, value in resources.items()},
            self._seconds(table, "timeout_s", 60.0),
            self._seconds(table, "recovery_interval_s", 10.0),
            self._expanded_or_none(table, "decider"),
            self._flag(table, "telemetry"),
            self._http(table),
            self._http_token_env(table),
            self._http_act_token_env(table),
            self._log_format(table),
        )

    def _resource(self, name: str, value: object) -> ResourceConfig:
        key = f"resources.{name}"
        if isinstance(value, str):
            value = {"url": value}
        if not isinstance(value, dict):
            raise self._wrong(key, 'expected "url" or { url = "…", mode = "two-phase" }')
        for inner in value:
            if inner not in _RESOURCE_KEYS:
                raise self._unknown(f"{key}.{inner}", inner, _RESOURCE_KEYS)
        url = value.get("url")
        if not isinstance(url, str):
            raise self._wrong(f"{key}.url", "missing, or no text; where is the resource?")
        mode = value.get("mode", "two-phase")
        if mode not in ("two-phase", "decider"):
            raise self._wrong(f"{key}.mode", f'{mode!r} is neither "two-phase" nor "decider"')
        return ResourceConfig(self._expanded(f"{key}.url", url), mode)

    def _text(self, table: Mapping[str, Any], key: str) -> str | None:
        value = table.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, f"expected text, not {value!r}")
        return value

    def _expanded_or_none(self, table: Mapping[str, Any], key: str) -> str | None:
        text = self._text(table, key)
        return None if text is None else self._expanded(key, text)

    def _flag(self, table: Mapping[str, Any], key: str) -> bool:
        value = table.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, f"expected true or false, not {value!r}")
        return value

    def _http(self, table: Mapping[str, Any]) -> str | None:
        text = self._expanded_or_none(table, "http")
        if text is not None and self._environment is not None:
            try:
                host_and_port(text)
            except ValueError as error:
                raise self._wrong("http", str(error)) from error
        return text

    def _http_token_env(self, table: Mapping[str, Any]) -> str | None:
        name = self._text(table, "http_token_env")
        if name is not None and "http" not in table:
            raise self._wrong("http_token_env", 'it is for a page of http, which is missing: http = "127.0.0.1:9464"')
        return name

    def _http_act_token_env(self, table: Mapping[str, Any]) -> str | None:
        name = self._text(table, "http_act_token_env")
        if name is not None and "http_token_env" not in table:
            raise self._wrong(
                "http_act_token_env", 'who acts has to see first: http_token_env = "NODE_TOKEN" is missing'
            )
        return name

    def _log_format(self, table: Mapping[str, Any]) -> str:
        value = table.get("log_format", FORMATS[0])
        if value not in FORMATS:
            raise self._wrong("log_format", f"expected {' or '.join(FORMATS)}, not {value!r}")
        return str(value)

    def _seconds(self, table: Mapping[str, Any], key: str, default: float) -> float:
        value = table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < TIMEOUT_MAX:
            raise self._wrong(key, f"expected seconds above 0, not {value!r}")
        return float(value)

    def _expanded(self, key: str, text: str) -> str:
        if self._environment is None:
            return text
        try:
            return expanded(text, self._environment)
        except KeyError as error:
            raise self._wrong(key, not_set(error.args[0])) from None

    def _unknown(self, key: str, last: str, known: Collection[str]) -> ConfigurationError:
        close = get_close_matches(last, known, 1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        return self._wrong(key, f"unknown key; known are {', '.join(sorted(known))}{meant}")

    def _wrong(self, key: str, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: {key}: {what}")
