"""Secrets in open strings: `${NAME}` stands for an environment variable of the process that opens the resource, so that
no secret travels from the driver to the executors."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from pipeline.core.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expanded(name: str, url: str, environment: Mapping[str, str] = os.environ) -> str:
    """`url` with its variables; PipelineError for one that is not set here."""

    def value_of(match: re.Match[str]) -> str:
        value = environment.get(match[1])
        if value is None:
            raise PipelineError(
                f"{name}: the environment variable {match[1]} is not set; set it on the driver's host and on every "
                f"executor's (spark.executorEnv.{match[1]})"
            )
        return value

    return _VARIABLE.sub(value_of, url)
