"""These tests check log lines: the same words as text and as JSON, with fields, and nothing that a peer can forge."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from xa.telemetry.log_lines import FIELDS, FORMATS, LONGEST, about, line, lines

EVIL = "orders\n2026-01-01 00:00:00,000 CRITICAL all is lost\x1b[2J\x7f\u202e\u2028\x9b"


def record(words: str = "%s was dropped", *arguments: object, error: Any = None, **fields: Any) -> logging.LogRecord:
    logger = logging.getLogger("xabridge.test")
    return logger.makeRecord(logger.name, logging.WARNING, __file__, 1, words, arguments, error, extra=about(**fields))


def raised(text: str) -> Any:
    try:
        dict[str, str]()[text]
    except LookupError:
        return sys.exc_info()


@pytest.mark.parametrize("log_format", FORMATS)
def test_a_peer_forges_no_line(log_format: str) -> None:
    """Not by a name, not by a field, and not by the text of an exception."""
    told = lines(log_format).format(record("%s was dropped", EVIL, error=raised(EVIL), queue=EVIL, user=EVIL))
    first, *others = told.split("\n")
    assert all(other.startswith("  ") for other in others)
    assert "CRITICAL" in first
    assert first.isprintable()
    assert all(other.isprintable() for other in others)
    assert not set("\x1b\x7f\u202e\u2028\x9b") & set(told)


def test_json_has_the_words_and_the_fields() -> None:
    told = json.loads(
        lines("json").format(record("%s: gone", "m1", transaction="orders-1·1·2", message="m1", queue=EVIL))
    )
    assert (told["msg"], told["level"], told["logger"]) == ("m1: gone", "WARNING", "xabridge.test")
    assert (told["transaction"], told["message"], told["queue"]) == ("orders-1·1·2", "m1", EVIL)
    assert told["time"].endswith("+00:00")
    assert set(told) - {"time", "level", "logger", "msg", "error"} <= set(FIELDS)


def test_text_shows_the_fields_that_the_words_do_not_have() -> None:
    told = lines("text").format(record("%s: gone", "m1", message="m1", queue="orders"))
    assert told.endswith(" WARNING m1: gone [queue=orders]")
    assert lines("text", named=True).format(record("gone")).endswith(" WARNING xabridge.test gone")


def test_one_of_several_processes_says_its_number() -> None:
    written = lines("text", named=True, process=2).format(record("gone"))
    assert written.endswith(" WARNING process 2 xabridge.test gone")
    assert json.loads(lines("json", process=2).format(record("gone")))["process"] == 2
    assert "process" not in json.loads(lines("json").format(record("gone")))


@pytest.mark.parametrize("log_format", FORMATS)
def test_a_line_has_an_end(log_format: str) -> None:
    assert len(lines(log_format).format(record("%s", "x" * 10 * LONGEST, queue="y" * 10 * LONGEST))) < 2 * LONGEST + 500


def test_what_a_command_says_is_a_line_of_the_same_kind() -> None:
    assert line("text", "up", plain="xabridge broker: up") == "xabridge broker: up\n"
    assert json.loads(line("json", "up", plain="xabridge broker: up"))["msg"] == "up"
