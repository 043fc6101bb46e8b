"""Every setting that a part declares is read by that part, and what is wrong with it is said in the same words: the
file, the whole key, and what is expected. What an environment variable holds is in none of them.

Parts and settings are those that are declared, so that a new one is looked at here by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from dtx.broker.access.permissions import Rule
from dtx.broker.config import BrokerConfig, load
from dtx.broker.settings import Limits, QueueSettings, Settings
from tm import configuration_from
from tm.config import Configuration
from tm.resources import ResourceConfig
from xa.configuration import TEXT, ConfigurationError, settings_of
from xabridge.console.settings import ConsoleSettings, NodeTable, console_settings
from xabridge.outbox.config import OutboxConfig
from xabridge.outbox.relay import RelaySettings
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.settings import PipelineTable, settings_from

SECRET: Final = "s3cret-Zq7"  # noqa: S105 — no one's


def _pipeline(path: Path) -> Any:
    return settings_from("p", None, {}, str(path), {"SECRET": SECRET})


class Part(NamedTuple):
    """A table of the file: what declares its settings, and what reads it."""

    table: str
    declared: tuple[type[Any], ...]
    read: Callable[[Path], Any]
    needed: tuple[str, ...] = ()
    """The lines without which the table is refused."""


PARTS: Final = (
    Part("", (Configuration,), lambda path: configuration_from(path, {"SECRET": SECRET})),
    Part(
        "resources.a", (ResourceConfig,), lambda path: configuration_from(path, {"SECRET": SECRET}), ('url = "x://y"',)
    ),
    Part("broker", (BrokerConfig, Settings), lambda path: load(path, {})),
    Part("broker.limits", (Limits,), lambda path: load(path, {})),
    Part("broker.queue_defaults", (QueueSettings,), lambda path: load(path, {})),
    Part("broker.queues.a", (QueueSettings,), lambda path: load(path, {})),
    Part("broker.permissions.a", (Rule,), lambda path: load(path, {})),
    Part("console", (ConsoleSettings,), lambda path: console_settings(path, {"SECRET": SECRET})),
    Part(
        "console.nodes.a",
        (NodeTable,),
        lambda path: console_settings(path, {"SECRET": SECRET}),
        ('url = "http://h:1"', 'token_env = "SECRET"'),
    ),
    Part("outbox", (OutboxConfig, RelaySettings), lambda path: OutboxConfig.read(path, {"SECRET": SECRET})),
    Part("pipeline", (PipelineTable,), _pipeline),
)
EACH: Final = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.table or "node")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)


def refusal(part: Part, folder: Path, key: str, value: str) -> str:
    """What the part says of the setting `key` with this value, behind the file and the whole key."""
    path = folder / "xabridge.toml"
    head = [] if key == "node" and not part.table else ['node = "n"']
    table = [f"[{part.table}]"] if part.table else []
    needed = [line for line in part.needed if line.partition(" ")[0] != key]
    path.write_text("\n".join([*head, *table, *needed, f"{key} = {value}"]), encoding="utf-8")
    with pytest.raises((ConfigurationError, PipelineError)) as refused:
        part.read(path)
    place = f"{path}: {part.table + '.' if part.table else ''}{key}: "
    assert str(refused.value).startswith(place)
    assert refused.value.__suppress_context__ or not isinstance(refused.value.__context__, ValueError)
    return str(refused.value).removeprefix(place)


def known(part: Part) -> dict[str, Any]:
    return {name: one for declared in part.declared for name, one in settings_of(declared).items()}


@EACH
def test_a_wrong_kind_is_refused_with_what_is_expected(part: Part, tmp_path: Path) -> None:
    for name, one in known(part).items():
        expected = one.kind.expected if one.kind is not None else "a table"
        assert refusal(part, tmp_path, name, "1979-05-27").startswith(f"expected {expected}, not "), name


@EACH
def test_a_close_key_is_suggested(part: Part, tmp_path: Path) -> None:
    for name in known(part):
        said = refusal(part, tmp_path, f"{name}x", "1")
        assert re.match(rf"unknown key; known are .*\b{name}\b.* \(did you mean \w+\?\)$", said), name


@EACH
def test_no_message_shows_what_a_variable_holds(part: Part, tmp_path: Path) -> None:
    for name, one in known(part).items():
        if part.table == "pipeline" or (one.kind is not None and one.kind is TEXT) or name in {"users", *FILES}:
            continue  # any text fits
        assert SECRET not in refusal(part, tmp_path, name, '"${SECRET}:no port"')
        assert SECRET not in refusal(part, tmp_path, name, '["${SECRET}", 1]')


FILES: Final = ("certificate", "key", "client_ca")


@EACH
def test_a_variable_that_is_not_set_is_named(part: Part, tmp_path: Path) -> None:
    if part.table == "pipeline":
        return  # what opens the log puts it in
    for name, one in known(part).items():
        if one.kind is not None:
            assert refusal(part, tmp_path, name, '"${NO_SUCH}"') == (
                "the environment variable NO_SUCH is not set; set it for this process"
            )
