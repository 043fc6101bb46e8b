"""These fixtures are what several parts of `xabridge` are tested with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _fresh_loggers() -> Iterator[None]:
    """Our loggers are as in a new process: a command that ran in this one has set them up for itself."""
    _reset_loggers()
    yield
    _reset_loggers()


def _reset_loggers() -> None:
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "xabridge":
            logger.setLevel(logging.NOTSET)
            logger.propagate = True


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker of this test's."""
    made = EmbeddedBroker(tmp_path)
    yield made
    made.stop()
