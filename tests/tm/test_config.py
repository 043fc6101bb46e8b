"""These tests cover configuration from the file, from arguments and by entry points. Every error must name the place
and the key, and say how to correct it.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cases import each
from tests.tm.wrapped import Wrapped
from tm import Configuration, ConfigurationError, ResourceConfig, TransactionManager, configuration_from
from tm.resources.resource import GROUP, _installed, find_factory
from xabridge.testing.reference import DecidingStore, ReferenceDeciderFactory, ReferenceFactory, ReferenceStore

GOOD = """
node = "orders-1"
log  = "file:///var/lib/xabridge/log"
timeout_s = 30

[resources]
broker = "amqps://orders-svc:${BROKER_LOGIN}@broker:5671"
shop   = { url = "postgresql://orders@db/shop", mode = "two-phase" }

[broker]
port = 5672
"""


def read(tmp_path: Path, text: str, **environment: str) -> Configuration:
    path = tmp_path / "xabridge.toml"
    path.write_text(text, encoding="utf-8")
    return configuration_from(path, environment)


def test_a_good_file(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD, BROKER_LOGIN="s3cret") == Configuration(
        "orders-1",
        "file:///var/lib/xabridge/log",
        {
            "broker": ResourceConfig("amqps://orders-svc:s3cret@broker:5671"),
            "shop": ResourceConfig("postgresql://orders@db/shop", "two-phase"),
        },
        30.0,
    )


WRONG = {
    "no TOML": ("resources =", "", "not TOML"),
    "an unknown key": ('logs = "x"', "logs", "unknown key; known are "),
    "a key that is misspelt": ('logg = "x"', "logg", "unknown key; known are broker"),
    "... and what was meant": ('logg = "x"', "logg", "(did you mean log?)"),
    "a log that is a number": ("log = 7", "log", "expected text, not a whole number"),
    "no table of resources": ("resources = 7", "resources", "expected a table"),
    "a resource that is a number": ("[resources]\na = 7", "resources.a", "expected a table, not a whole number"),
    "a resource without a url": ("[resources]\na = {}", "resources.a.url", "missing; expected text"),
    "an unknown key of it": ('[resources]\na = {url = "x://y", color = "red"}', "resources.a.color", "unknown key"),
    "no mode": (
        '[resources]\na = {url = "x://y", mode = "one-phase"}',
        "resources.a.mode",
        'expected "two-phase" or "decider", not \'one-phase\'',
    ),
    "a secret of a wrong kind": ('telemetry = "${SECRET}"', "telemetry", "expected true or false, not this text"),
    "no address": ('http = "${SECRET}"', "http", "expected host:port, a text, not this text"),
    "a token without a page": ('http_token_env = "A"', "http_token_env", "it is for a page of http, which is missing"),
    "acting without a token": ('http_act_token_env = "A"', "http_act_token_env", "who acts has to see first"),
    "an unknown format": ('log_format = "xml"', "log_format", """expected "text" or "json", not 'xml'"""),
    "no variable": ('[resources]\na = "x://u:${NOWHERE}@y"', "resources.a.url", "variable NOWHERE is not set"),
    "no variable of the log": ('log = "file://${NOWHERE}"', "log", "environment variable NOWHERE is not set"),
    "no time at all": ("timeout_s = 0", "timeout_s", "expected seconds above 0, not 0"),
    "a time that is text": ('timeout_s = "60"', "timeout_s", "expected seconds above 0, not '60'"),
    "a time that is true": ("timeout_s = true", "timeout_s", "expected seconds above 0, not True"),
    "a time that is no number": ("timeout_s = nan", "timeout_s", "expected seconds above 0, not nan"),
    "a pause without end": ("recovery_interval_s = inf", "recovery_interval_s", "not inf"),
}
NO_NODE = {
    "no node": ('log = "file:///x"', "node", "missing; expected a name that stays the same, such as"),
    "a node that is none": ('node = "two words"', "node", "1 to 32 of the ASCII letters"),
    "a node that is a number": ("node = 7", "node", "digits and . _ -, not 7"),
}


@each("case", [*WRONG, *NO_NODE])
def test_an_error_names_file_key_and_mend(tmp_path: Path, case: str) -> None:
    text, key, what = NO_NODE[case] if case in NO_NODE else WRONG[case]
    with pytest.raises(ConfigurationError) as error:
        read(tmp_path, text if case in NO_NODE else f'node = "n"\n{text}', SECRET="s3cret")  # noqa: S106 — no one's
    message = str(error.value)
    assert "s3cret" not in message
    assert message.startswith(f"{tmp_path / 'xabridge.toml'}: {key}")
    assert what in message


def test_a_name_with_a_variable_waits_for_whoever_puts_it_in(tmp_path: Path) -> None:
    """A pipeline's executors do, so that no secret is in a plan."""
    path = tmp_path / "xabridge.toml"
    path.write_text('node = "orders-${HOSTNAME}"\nhttp = "${HOST}:9464"\ntimeout_s = 7\n', encoding="utf-8")
    found = configuration_from(path, None)
    assert (found.node, found.http, found.timeout_s) == ("orders-${HOSTNAME}", "${HOST}:9464", 7.0)
    path.write_text('node = "two words"\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not 'two words'"):
        configuration_from(path, None)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: no such file; write one"):
        configuration_from(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigurationError, match="can't be read"):
        configuration_from(tmp_path)
    (tmp_path / "xabridge.toml").write_bytes(b'node = "\xff"')
    with pytest.raises(ConfigurationError, match="not TOML: 'utf-8' codec"):
        configuration_from(tmp_path / "xabridge.toml")


# --- what only the manager can see ------------------------------------------------------------------------------------
def manager(tmp_path: Path, text: str) -> TransactionManager:
    path = tmp_path / "xabridge.toml"
    path.write_text(text, encoding="utf-8")
    return TransactionManager.from_config(path)


WITH_LOG = 'log = "file:///x"\n[resources]\n'
LATE = {
    "no log and nobody who decides": ('[resources]\na = "reference-test://a"', "log: there is no log: say where"),
    "a log that is no URL": ('log = "/var/log"', "'/var/log' is not a URL"),
    "a log with two slashes": ('log = "file://var/log"', "three slashes"),
    "a scheme that nobody has": (f'{WITH_LOG}a = "gopher://a"', "registered for gopher://"),
    "a url that is none": (f'{WITH_LOG}a = "a:b"', "resources.a.url: '…': not a URL: write scheme://"),
    "a name that is too long": (f'{WITH_LOG}{"a" * 49} = "reference-test://a"', "a name has 1 to 48 octets"),
    "a name without a letter": (f'{WITH_LOG}"" = "reference-test://a"', "1 to 48 octets"),
    "a decider that is none": (f'decider = "a"\n{WITH_LOG}a = "reference-test://a"', "no resource of that name"),
    "a broken one": (f'{WITH_LOG}a = "broken-test://a"', "registered for broken-test:// can't be loaded"),
    "a decider where none is registered": (
        '[resources]\na = { url = "broken-test://a", mode = "decider" }',
        "registered for decider+broken-test://",
    ),
}


@pytest.mark.parametrize(("text", "what"), LATE.values(), ids=LATE)
@pytest.mark.usefixtures("registered")
def test_an_error_behind_the_file_names_the_file_too(tmp_path: Path, text: str, what: str) -> None:
    before = threading.active_count()
    with pytest.raises(ConfigurationError) as error:
        manager(tmp_path, f'node = "n"\n{text}')
    assert str(error.value).startswith(f"{tmp_path / 'xabridge.toml'}: ")
    assert what in str(error.value)
    assert threading.active_count() == before


@each("arguments", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"recovery_interval_s": -1}])
def test_arguments_are_checked_too(tmp_path: Path, arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected seconds above 0"):
        TransactionManager("orders-1", f"file://{tmp_path}/log", **arguments)
    with pytest.raises(ConfigurationError, match="node id 'two words'"):
        TransactionManager("two words", f"file://{tmp_path}/log")


# --- entry points -----------------------------------------------------------------------------------------------------
STORE = ReferenceStore("a")
DECIDER = DecidingStore("d")


class AnyUrl(Wrapped):
    """A reference resource that takes the open string of its scheme."""

    def open(self, open_string: str, rmid: int) -> Any:
        self.opened = open_string
        return self.rm.open(self.rm.identity, rmid)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution that registers resource managers, as a third party's would."""
    module = ModuleType("xabridge_test_resources")
    module.reference = lambda registrar: AnyUrl(ReferenceFactory(STORE)(registrar))  # type: ignore[attr-defined]
    module.decider = lambda registrar: AnyUrl(ReferenceDeciderFactory(DECIDER)(registrar))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ours = [
        importlib.metadata.EntryPoint("reference-test", f"{module.__name__}:reference", GROUP),
        importlib.metadata.EntryPoint("decider+reference-test", f"{module.__name__}:decider", GROUP),
        importlib.metadata.EntryPoint("broken-test", f"{module.__name__}:nothing", GROUP),
    ]

    def entry_points(*, group: str, **selection: Any) -> Any:
        return importlib.metadata.EntryPoints(ours).select(group=group, **selection)

    monkeypatch.setattr("tm.resources.resource.entry_points", entry_points)
    yield
    _installed.cache_clear()  # other tests of this process would find what was registered here
    STORE.committed.clear()
    DECIDER.committed.clear()


@pytest.mark.usefixtures("registered")
def test_resources_are_found_by_the_scheme_of_their_urls_and_a_decider_under_its_own(tmp_path: Path) -> None:
    resources = '[resources]\na = "reference-test://somewhere/a?x=1"\n'
    with manager(tmp_path, f'node = "n"\nlog = "file://{tmp_path}/log"\n{resources}') as tm:
        assert tm.resource("a").rm.opened == "reference-test://somewhere/a?x=1"  # type: ignore[attr-defined]
        with tm.begin() as tx:
            tx["a"].write("k", 1)
    decider = 'd = { url = "reference-test://d", mode = "decider" }'
    with manager(tmp_path, f'node = "n"\n{resources}{decider}') as tm:
        assert tm.log is None
        with tm.begin() as tx:
            tx["a"].write("k", 2)
            tx["d"].write("k", 2)
    assert STORE.data == DECIDER.data == {"k": 2}


@pytest.mark.usefixtures("registered")
def test_who_is_registered_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=re.escape("(registered: broken-test, decider+reference-test, reference-")
    ):
        find_factory("a", ResourceConfig("gopher://a"))


@each(("url", "can_decide"), [("mssql+pyodbc://db/shop", True), ("sqlite:///shop.db", True), ("gopher://db", False)])
def test_what_can_only_decide_is_said_to_be_able_to(url: str, can_decide: bool) -> None:
    with pytest.raises(ConfigurationError) as raised:
        find_factory("a", ResourceConfig(url))
    assert ('as the one that decides it can take part: mode = "decider"' in str(raised.value)) is can_decide
