"""The settings of a pipeline, its decision log and its resources: from options, and otherwise from xabridge.toml.

    [resources]
    broker = "amqps://orders@broker:5671/?password_env=BROKER_PASSWORD"
    shop   = "postgresql://orders:${SHOP_PASSWORD}@db/shop"

    [pipeline]
    log = "postgresql://orders:${SHOP_PASSWORD}@db/decisions"

Without `[pipeline]` the file's own `log` counts, if it is a database. A resource with `mode = "decider"` has to be the
database of the log: its rows are written together with the decision. `${NAME}` stands for an environment variable, and
is looked up where a resource is opened: on the host of each executor, so that no secret travels in a plan.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tm.config import configuration_in
from xa.configuration import TEXT, ConfigurationError, read_file, setting
from xa.open_string import shown
from xabridge.pipeline.core import PipelineError, Settings
from xabridge.pipeline.core.secrets import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = "xabridge.toml"
DATABASE: Final = re.compile(r"(postgresql|sqlite)(\+\w+)?:")
"""The URL of a log that can decide pipelines."""


@dataclass(frozen=True, slots=True)
class PipelineTable:
    """The table `[pipeline]`."""

    log: str | None = setting(
        None, TEXT, "the database that keeps the decisions of pipelines", unset="`log`, if that is one", secret=True
    )


def settings_from(
    pipeline: str,
    log: str | None,
    resources: Mapping[str, str],
    config: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings of `pipeline`. Arguments override the file `config`, which is ./xabridge.toml by default, if there
    is one. PipelineError: neither says where decisions are kept."""
    configured_log, configured, deciding = _configured(config)
    url = log or configured_log
    if url is None:
        raise PipelineError(
            f"pipeline {pipeline}: no database for its decisions is configured. Set the option log to the URL of a "
            f'database that every driver of this pipeline reaches, or [pipeline] log = "…" in {config or FILE}'
        )
    url = expanded("log", url, environment)
    if not DATABASE.match(url):
        raise PipelineError(
            f"pipeline {pipeline}: log: {shown(url)} is not a database; several processes decide a "
            "pipeline, so its log has to be postgresql://… (or sqlite:///… if all drivers run on one host)"
        )
    deciders = tuple((name, decider) for name, decider in deciding.items() if name not in resources)
    return Settings(pipeline, url, tuple({**configured, **resources}.items()), deciders)


def _configured(config: str | None) -> tuple[str | None, dict[str, str], dict[str, str]]:
    """The settings in the file: the log, and the open strings by name; at last those of databases that decide."""
    if config is None and not Path(FILE).exists():
        return None, {}, {}
    path = Path(config or FILE)
    try:
        file = read_file(path, None, later=True)
        configuration = configuration_in(file)
        log = file.table("pipeline").read(PipelineTable).log
    except ConfigurationError as error:
        raise PipelineError(str(error)) from error

    if log is None and configuration.log is not None and DATABASE.match(configuration.log):
        log = configuration.log
    resources: dict[str, str] = {}
    deciders: dict[str, str] = {}
    for name, resource in configuration.resources.items():
        url, mode = (resource, "two-phase") if isinstance(resource, str) else (resource.url, resource.mode)
        if mode == "two-phase":
            resources[name] = url
        elif mode == "decider":
            deciders[name] = url
    return log, resources, deciders
