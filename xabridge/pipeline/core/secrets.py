"""Secrets in open strings: `${NAME}` stands for an environment variable of the process that opens the resource, so that
no secret travels from the driver to the executors. What it stands for is encoded, as in any configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xa import secrets
from xabridge.pipeline.core.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Mapping


def expanded(name: str, url: str, environment: Mapping[str, str] = os.environ) -> str:
    """`url` with its variables; PipelineError for one that is not set here."""
    try:
        return secrets.expanded(url, environment)
    except KeyError as error:
        advice = "set it on the driver's host and on every executor's (spark.executorEnv.NAME)"
        raise PipelineError(f"{name}: {secrets.not_set(error.args[0], advice)}") from None
