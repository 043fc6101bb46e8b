"""A password that is marked goes through every open string, command and page that a user can reach, and is printed
nowhere: in no error with what caused it, no `repr`, no line of a log, no metric, no page, and no child's arguments.

Schemes and commands are those that are registered, so that a new one can't be forgotten.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import logging
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from dtx.broker.broker import rehearse_start
from dtx.broker.config import load
from dtx.store.contract import StoreError
from dtx.store.sql.inspection import look_at_store
from dtx.store.sql.store import open_database
from rm_db.address import Address
from tests.cli import installed
from tests.repeating_server import TALKS, RepeatingServer
from tests.simulation.seeds import EVERY_POINT
from tests.tm.telemetry.asking import asked as page_of
from tm import ConfigurationError, ManagerUnusable, TransactionManager
from tm.config import configuration_from
from tm.log import LogError
from tm.log.factory import open_log
from tm.resources import ResourceConfig, find_factory
from xa import XaError
from xa.open_string import OpenString, shown
from xa.secrets import masked
from xa.telemetry.endpoint import PostActions, PrivatePages, Request
from xabridge.cli.main import main, make_parser
from xabridge.console.app import application
from xabridge.console.console import Console
from xabridge.console.settings import console_settings
from xabridge.outbox.config import OutboxConfig
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.settings import settings_from
from xabridge.testing.ports import free_port

MARKS: Final = ("Zq7", "Wx8", "Ye9", "Vk4", "Ut5", "Nr6", "Mj3", "Hf2", "Gd1", "ßé", "%C3%9F", "\\xdf", "Pb0")
SECRET: Final = "Zq7@Wx8/Ye9%Vk4:Ut5#Nr6?Mj3 Hf2'Gd1\"ßéPb0"  # noqa: S105 — no one's
ENCODED: Final = quote(SECRET, safe="")
AT: Final = "127.0.0.1:1"
SCHEMES: Final = sorted(entry.name for entry in installed("xabridge.resource_managers") if not entry.name.endswith("*"))
OTHERS: Final = (
    "decider+mssql+pyodbc", "mysql+nobody-has-it", "amqp091", "amqp091s", "redis", "x-typo", "sqlite", "file"
)  # fmt: skip
ALL_SCHEMES: Final = (*SCHEMES, *OTHERS)
ERRORS: Final = (
    XaError, ConfigurationError, LogError, ManagerUnusable, StoreError, PipelineError, ValueError, OSError
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """How a password may stand in an open string. `refused`: no scheme takes it."""

    name: str
    text: str
    refused: bool = True

    def of(self, scheme: str) -> str:
        """The open string."""
        return self.text.replace("SCHEME", scheme)


FORMS: Final = (
    Form("encoded", f"SCHEME://shop:{ENCODED}@{AT}/shop", refused=False),
    Form("encoded, no path", f"SCHEME://shop:{ENCODED}@{AT}", refused=False),
    Form("encoded, a wrong option", f"SCHEME://shop:{ENCODED}@{AT}/?no_such=1&xa_pool_size=none", refused=False),
    Form("encoded, several hosts", f"SCHEME://shop:{ENCODED}@{AT},[::1]:1/", refused=False),
    Form("encoded, a port that is none", f"SCHEME://shop:{ENCODED}@127.0.0.1:port/shop"),
    Form("encoded, a port too high", f"SCHEME://shop:{ENCODED}@127.0.0.1:99999/shop"),
    Form("encoded, half an IPv6 address", f"SCHEME://shop:{ENCODED}@[::1"),
    Form("encoded, no host", f"SCHEME://shop:{ENCODED}@/shop", refused=False),
    Form("encoded, no host and no @", f"SCHEME://shop:{ENCODED}"),
    Form("encoded, a host that is none", f"SCHEME://shop:{ENCODED}@h\u2100/d", refused=False),
    Form("encoded, two colons and an @", f"SCHEME://shop@corp:{ENCODED}@{AT}/shop"),
    Form("encoded, a control character", f"SCHEME://shop:{ENCODED}%00@{AT}/shop"),
    Form("encoded, twice", f"SCHEME://shop:{ENCODED}@{AT}/shop?password={ENCODED}", refused=False),
    Form("in an option", f"SCHEME://{AT}/shop?user=shop&password={ENCODED}", refused=False),
    Form("in an option, with no path", f"SCHEME://{AT}?user=shop&passwd={ENCODED}", refused=False),
    Form(
        "in an option, and a wrong number",
        f"SCHEME://shop@{AT}/shop?password={ENCODED}&connect_timeout=none",
        refused=False,
    ),
    Form("in an option, with one slash", f"SCHEME:/?password={ENCODED}"),
    Form("in an option, not encoded", f"SCHEME://{AT}/shop?user=shop&password={SECRET}", refused=False),
    Form("in an option of TLS", f"SCHEME://shop@{AT}/shop?sslpassword={ENCODED}", refused=False),
    Form("in an option of TLS, not encoded", f"SCHEME://shop@{AT}?ssl_key_password={SECRET}&x=1", refused=False),
    Form("not encoded", f"SCHEME://shop:{SECRET}@{AT}/shop"),
    Form("not encoded, no path", f"SCHEME://shop:{SECRET}@{AT}"),
    Form("not encoded, no host", f"SCHEME://shop:{SECRET}"),
    Form("not encoded, no @ in it", f"SCHEME://shop:{SECRET.replace('@', '')}@{AT}/shop"),
    Form("not encoded, and no host", f"SCHEME://shop:{SECRET.replace('@', '')}/shop"),
    Form("not encoded, digits first", f"SCHEME://shop:12/{SECRET}@{AT}/shop"),
    Form("not encoded, only a per cent", f"SCHEME://shop:Ye9%Vk4@{AT}/shop", refused=False),
    Form("not encoded, quotes", f"SCHEME://shop:Hf2'Gd1\"ßé@{AT}/shop", refused=False),
    Form("for the user", f"SCHEME://{SECRET}@{AT}/shop"),
    Form("for the user, with a password", f"SCHEME://{SECRET}:{SECRET}@{AT}/shop"),
    Form("one slash", f"SCHEME:/shop:{SECRET}@{AT}/shop"),
    Form("no colon", f"SCHEME//shop:{SECRET}@{AT}/shop"),
    Form("three slashes", f"SCHEME:///shop:{SECRET}@{AT}/shop", refused=False),
    Form("no scheme", f"shop:{SECRET}@{AT}/shop"),
    Form("as libpq writes it", f"host=127.0.0.1 port=1 user=shop password='{SECRET}'"),
)
pytestmark = pytest.mark.filterwarnings("ignore:'passwd' is deprecated")
EACH = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def parted(ways: Sequence[str], parts: int) -> pytest.MarkDecorator:
    """Each way with each form, in so many parts. One part of each is fast, and meets every form with some of the ways;
    the others are in the long form."""
    return pytest.mark.parametrize(
        ("scheme", "forms"),
        [
            pytest.param(
                way,
                FORMS[part::parts],
                id=f"{way}-{part}",
                marks=() if (place + part) % parts == 0 else (pytest.mark.slow, pytest.mark.long),
            )
            for place, way in enumerate(ways)
            for part in range(parts)
        ],
    )


def holds_nothing(*texts: object) -> None:
    for text in texts:
        assert not [mark for mark in MARKS if mark in str(text)], text


def check_raised(error: BaseException) -> None:
    """The error, and all that caused it."""
    holds_nothing(str(error), repr(error), *error.args, "".join(traceback.format_exception(error)))


PARSER: Final = functools.cache(make_parser)
"""A command's parser, which remembers nothing of the last time, and takes longer to make than most commands."""


@pytest.fixture(autouse=True)
def _made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("xabridge.cli.main", "xabridge.operations.scan"):
        monkeypatch.setattr(importlib.import_module(module), "entry_points", installed)
    monkeypatch.setattr("tm.resources.resource.entry_points", installed)
    monkeypatch.setattr(importlib.import_module("xabridge.cli.main"), "make_parser", PARSER)


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Looks at the log of every library, at what is printed, and at the arguments of child processes."""
    with caplog.at_level(logging.DEBUG):
        yield
    for record in caplog.records:
        holds_nothing(record.getMessage(), *(record.args or ()), logging.Formatter().format(record))
    holds_nothing(*capfd.readouterr())
    holds_nothing(*CHILDREN)


CHILDREN: Final[list[str]] = []


def _note_child(event: str, arguments: Any) -> None:
    if event == "subprocess.Popen":
        CHILDREN.append(repr(arguments[1]))


sys.addaudithook(_note_child)


@EACH
def test_an_open_string_is_printed_without_its_secrets(form: Form) -> None:
    for scheme in ALL_SCHEMES:
        holds_nothing(shown(form.of(scheme)))
        try:
            found = OpenString.parse(form.of(scheme), {})
        except ValueError as error:
            check_raised(error)
        else:
            holds_nothing(found, repr(found), repr([found]))
            again = OpenString.parse(found.url)
            assert (again.user, again.password, again.place) == (found.user, found.password, found.place)
            assert again.decoded == found.decoded
            assert found.scheme not in SCHEMES or scheme == "delta" or not form.refused, found.url


class _NoRegistrar:
    """For resource managers that register by themselves; none gets so far."""

    def ax_reg(self, rmid: int, flags: int = 0) -> Any:  # noqa: ARG002 — the protocol's
        raise AssertionError(rmid)

    def ax_unreg(self, rmid: int, flags: int = 0) -> Any:  # noqa: ARG002 — the protocol's
        raise AssertionError(rmid)


@parted(ALL_SCHEMES, 4)
def test_a_resource_shows_none(scheme: str, forms: Sequence[Form]) -> None:
    for form in forms:
        open_resource(scheme, form.of(scheme))


def open_resource(scheme: str, url: str) -> None:
    mode: Any = "decider" if scheme.startswith("decider+") else "two-phase"
    config = ResourceConfig(url, mode)
    holds_nothing(config)
    try:
        factory = find_factory("shop", config)
    except ConfigurationError as error:
        check_raised(error)
        factory = None

    entry = installed("xabridge.resource_managers").select(name=scheme)
    if factory is None and entry:  # what an application may do itself, without a configuration
        [factory] = [one.load() for one in entry]
    if factory is None:
        return
    made = factory(_NoRegistrar())
    asked = [made.open] + ([made.diagnose] if hasattr(made, "diagnose") else [])
    for ask in asked:
        try:
            holds_nothing(ask(url, 1) if ask == made.open else ask(url))
        except ERRORS as error:
            check_raised(error)
    holds_nothing(repr(made), str(made), made.name)
    with contextlib.suppress(XaError):
        made.close("", 1)


@EACH
def test_an_address_shows_none(form: Form) -> None:
    look_into(*(partial(Address.parse, form.of(scheme)) for scheme in SCHEMES))


@parted(["postgresql", "sqlite", "file", "mysql+pymysql", "redis", "postgres"], 2)
def test_a_log_and_a_store_show_none(
    scheme: str, forms: Sequence[Form], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, form in enumerate(forms):
        if scheme == "sqlite" and form.name == "three slashes":
            continue  # the name of a file, which is no secret
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        url = form.of(scheme)
        look_into(
            partial(open_log, url, "node"), partial(open_database, url), partial(look_at_store, url, rehearse_start)
        )


def look_into(*ways: Callable[[], Any]) -> None:
    for ask in ways:
        try:
            made = ask()
        except ERRORS as error:
            check_raised(error)
        else:
            holds_nothing(made, str(made), repr(made))
            if hasattr(made, "close"):
                made.close()


CONFIGURED: Final = """
node = "n"
log = {log}
{more}
[resources]
{key}
[broker]
listen = ["127.0.0.1:0"]
store = {url}
[console.brokers]
main = {url}
[outbox]
database = {url}
broker = {url}
[pipeline]
log = {url}
"""
"""A configuration in which an open string stands wherever one can."""


def configured(folder: Path, form: Form, scheme: str, more: str = "", *, logs: bool = False) -> Path:
    """The configuration, in a file; with `logs` the manager's log is there as well."""
    text = repr_toml(form.of(scheme))
    log = text if logs else f'"file://{folder}/log"'
    mode = "decider" if scheme.startswith("decider+") else "two-phase"
    key = "".join(f'{name} = {{ url = {text}, mode = "{mode}" }}\n' for name in ("broker", "shop"))
    path = folder / f"{'logs' if logs else 'xabridge'}.toml"
    path.write_text(CONFIGURED.format(log=log, key=key, url=text, more=more), encoding="utf-8")
    return path


def repr_toml(text: str) -> str:
    """`text` as TOML."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@parted(["postgresql", "amqp", "openwire+ssl", "decider+sqlite"], 2)
def test_settings_show_none(scheme: str, forms: Sequence[Form], tmp_path: Path) -> None:
    for form in forms:
        path = configured(tmp_path, form, scheme)
        look_into(
            partial(configuration_from, path),
            partial(load, path, {}),
            partial(console_settings, path, {}),
            partial(OutboxConfig.read, path),
            partial(settings_from, "p", None, {"shop": form.of(scheme)}, str(path), {}),
        )


@parted(["postgresql", "amqp"], 4)
def test_a_manager_its_pages_and_its_metrics_show_none(scheme: str, forms: Sequence[Form], tmp_path: Path) -> None:
    for form in forms:
        port = free_port()
        try:
            path = configured(tmp_path, form, scheme, f'http = "127.0.0.1:{port}"')
            with TransactionManager.from_config(path) as manager:
                holds_nothing(manager, repr(manager), manager.recover(), manager.resources)
                with pytest.raises(Exception) as caught, manager.begin() as tx:
                    tx.enlist("shop")
                check_raised(caught.value)
                for page in ("metrics", "ready", "live"):
                    _, headers, body = page_of(port, page)
                    holds_nothing(headers, body.decode())
        except ERRORS as error:
            check_raised(error)


@contextlib.contextmanager
def console(path: Path) -> Iterator[tuple[TestClient, Any]]:
    """A console's client, and the answer to a login with a password that is typed."""
    here = "http://127.0.0.1:8161"
    with TestClient(
        application(Console(console_settings(path, {}), None)), base_url=here, headers={"origin": here}
    ) as client:
        before = re.search(r'name="before" value="([^"]+)"', client.get("/login").text)
        assert before is not None
        typed = {"user": "shop", "password": SECRET, "before": before[1], "next": ""}
        yield client, client.post("/login", data=typed)


@EACH
def test_the_pages_of_a_console_show_none(form: Form, tmp_path: Path) -> None:
    try:
        with console(configured(tmp_path, form, "amqp")) as (client, said):
            pages = [client.get(one).text for one in ("/login", "/", "/audit", "/health", "/metrics", "/b/main")]
            holds_nothing(*pages, said.text, said.headers, str(said.url))
            assert "refused" in said.text or "reached" in said.text or said.status_code != 200, said.text
    except ConfigurationError as error:
        check_raised(error)


def test_a_console_shows_no_typed_password_that_the_broker_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xa.secrets._HIDDEN", {})
    with RepeatingServer(TALKS["amqp"]) as server:
        path = tmp_path / "xabridge.toml"
        path.write_text(
            f'[console.brokers]\nmain = "amqp://127.0.0.1:{server.port}/?plain_without_tls=true"\n', encoding="utf-8"
        )
        with console(path) as (_, said):
            holds_nothing(said.text, said.headers)
            assert "no user with the password …" in said.text
        assert SECRET in server.received
    assert masked(SECRET) == SECRET, "what a stranger types blots out nothing"


def test_the_tokens_of_a_node_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "Zq7Wx8Ye9Vk4Ut5Nr6Mj3Hf2")
    monkeypatch.setenv("ACT_TOKEN", "Gd1Pb0Zq7Wx8Ye9Vk4Ut5Nr6")
    port = free_port()
    path = tmp_path / "xabridge.toml"
    path.write_text(
        f'node = "n"\nlog = "file://{tmp_path}/log"\nhttp = "127.0.0.1:{port}"\nhttp_token_env = "TOKEN"\n'
        'http_act_token_env = "ACT_TOKEN"\n[resources]\n',
        encoding="utf-8",
    )
    holds_nothing(configuration_from(path))

    with TransactionManager.from_config(path) as manager:
        holds_nothing(manager)
        for page in ("metrics", "ready", "live", "node", "node/in-doubt"):
            _, headers, body = page_of(port, page)
            holds_nothing(headers, body.decode())
    holds_nothing(PostActions("Zq7", {}), PrivatePages("Zq7", {}), Request("GET", "/", {"authorization": "Bearer Zq7"}))


REPEATED: Final = [
    (kind, scheme)
    for kind, schemes in {
        "postgresql": ("postgresql", "decider+postgresql"),
        "mariadb": ("mariadb", "decider+mysql+pymysql"),
        "amqp": ("amqp", "decider+amqp"),
        "amqp091": ("amqp091",),
    }.items()
    for scheme in schemes
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("talk", "way"),
    [
        pytest.param(talk, way, marks=() if (place + number) % 3 == 0 else (pytest.mark.long,))
        for place, talk in enumerate(TALKS)
        for number, way in enumerate(("${PASSWORD}", "password_env", "encoded"))
    ],
)
def test_a_server_that_repeats_the_password_in_its_errors_shows_none(
    talk: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", SECRET)
    monkeypatch.chdir(tmp_path)
    kind = talk.partition(",")[0]
    for scheme in [scheme for one, scheme in REPEATED if one == kind]:
        with RepeatingServer(TALKS[talk]) as server:
            own, mode = scheme.removeprefix("decider+"), "decider" if scheme.startswith("decider+") else "two-phase"
            options = {"amqp": "?plain_without_tls=true&timeout=3", "amqp091": ""}.get(
                kind, "?xa_plain_without_tls=true"
            )
            who = {"${PASSWORD}": "shop:${PASSWORD}", "password_env": "shop", "encoded": f"shop:{ENCODED}"}[way]
            more = "" if way != "password_env" else f"{'&' if options else '?'}password_env=PASSWORD"
            url = f"{own}://{who}@127.0.0.1:{server.port}/{'' if 'amqp' in kind else 'shop'}{options}{more}"
            of_log = (
                url.replace(options, "?require_auth=password") if kind == "postgresql" else f"sqlite:///{tmp_path}/l"
            )
            config = tmp_path / "repeated.toml"
            resource = "" if kind == "amqp091" else f'shop = {{ url = "{url}", mode = "{mode}" }}'
            config.write_text(
                f'node = "n"\nlog = "file://{tmp_path}/log"\n[resources]\n{resource}\n[pipeline]\nlog = "{of_log}"\n'
                f'[outbox]\ndatabase = "sqlite:///{tmp_path}/outbox"\nbroker = "{url}"\n'
            )
            if kind in {"postgresql", "mariadb", "amqp"}:
                with (
                    TransactionManager.from_config(config) as manager,
                    pytest.raises(Exception) as caught,
                    manager.begin() as tx,
                ):
                    tx.enlist("shop")
                check_raised(caught.value)

            for command in (
                ["doctor", "--json"], ["doctor", "--verbose"], ["recover", "list", "--json"], ["recover", "run"],
                ["outbox", "create"], ["outbox", "relay", "--once"], ["check"], ["pipeline", "status", "p"],
            ):  # fmt: skip
                with contextlib.suppress(SystemExit):
                    main([*command, "--config", str(config)])

            if kind == "postgresql":
                config.write_text(f'node = "n"\nlog = "{of_log}"\n[resources]\n')
                main(["recover", "list", "--config", str(config)])
                with pytest.raises(ERRORS) as unusable:
                    TransactionManager.from_config(config)
                check_raised(unusable.value)
                of_store = of_log.replace("${PASSWORD}", ENCODED)
                for ask in (
                    partial(open_log, of_store, "n"),
                    partial(look_at_store, of_store, rehearse_start),
                ):
                    with pytest.raises(ERRORS) as refused:
                        ask()
                    check_raised(refused.value)
                main(["broker", "backup", str(tmp_path / "copy"), "--store", of_store])
            assert SECRET in server.received


NAMES: Final = re.compile(r"password|secret|(?:^|_)token$|^(?:url|open_string|store|log|database|dsn|watch|conninfo)$")
SHOWN: Final = {
    ("HeldToken", "token"),  # the state of a decider's token
    ("ConnectionControl", "token"),  # of ActiveMQ's reconnection
    ("BrokerInfo", "url"),  # a broker's own, as it says it
    ("WatchedNode", "url"),  # which is refused with a user in it
    ("WatchedBroker", "url"),  # from which the user was taken
    ("ScannedSite", "log"),  # the content of one
    ("Ports", "log"),
    ("ReferenceDeciderFactory", "store"),
    ("ReferenceFactory", "store"),
    ("ServerFacts", "database"),  # the name of a database
    ("PreparedTransaction", "database"),
    ("_Opened", "database"),  # an object with no repr of its own
    ("Settings", "wrong_password_s"),  # a time
}
"""Fields with such a name that hold no secret: (class, field)."""


def test_no_class_shows_a_field_that_may_hold_one() -> None:
    found = set()
    for root in ("xa", "tm", "dtx", "rm_amqp", "rm_db", "rm_delta", "rm_openwire", "xabridge"):
        for module in pkgutil.walk_packages(importlib.import_module(root).__path__, f"{root}."):
            if module.name.endswith("__main__") or "frameworks" in module.name:
                continue
            for made in vars(importlib.import_module(module.name)).values():
                if isinstance(made, type) and is_dataclass(made):
                    found |= {(made.__name__, one.name) for one in fields(made) if one.repr and NAMES.search(one.name)}
    assert found - SHOWN == {("OpenString", "password")}  # which has a repr of its own


COMMANDS: Final[dict[str, list[list[str]] | str]] = {
    "broker": [["--store", "URL"], ["--config", "CONFIG"]],
    "broker backup": [["FOLDER/no/copy", "--store", "URL"], ["FOLDER/no/copy", "--config", "CONFIG"]],
    "check": [["--config", "CONFIG"], ["--config", "LOGS"], ["--config", "CONFIG", "--store", "shop=URL", "--json"]],
    "completion": [["URL"]],
    "console": [["--config", "CONFIG"], ["--broker", "main=URL"]],
    "demo": "its servers are its own, and have passwords of their own",
    "doctor": [["--config", "CONFIG"], ["--config", "LOGS"], ["--config", "CONFIG", "--json", "--verbose"]],
    "health": [["URL"], ["--timeout", "URL"]],
    "log backup": [
        ["FOLDER/copy", "--config", "CONFIG"],
        ["FOLDER/third", "--config", "LOGS"],
        ["FOLDER/other", "URL"],
    ],
    "outbox relay": [["--config", "CONFIG", "--once"], ["--database", "URL", "--broker", "URL", "--once"]],
    "outbox status": [["--config", "CONFIG"], ["--database", "URL", "--json"]],
    "outbox list": [["--database", "URL"]],
    "outbox show": [["--database", "URL", "1"]],
    "outbox retry": [["--database", "URL", "1"]],
    "outbox delete": [["--database", "URL", "1", "--yes"]],
    "outbox create": [["--database", "URL"]],
    "outbox clean": [["--database", "URL"]],
    "pipeline status": [
        ["p", "--log", "URL"],
        ["p", "--config", "CONFIG", "--resource", "shop=URL"],
        ["--json", "--log", "URL"],
    ],
    "pipeline package": "takes names of files, and no configuration",
    "pipeline demo": "its servers are its own, and have passwords of their own",
    "recover list": [["--config", "CONFIG"], ["--config", "LOGS"], ["--config", "CONFIG", "--json", "--all", "--wide"]],
    "recover show": [["--config", "CONFIG", "n-1·x·1"]],
    "recover watch": "draws what `recover list` prints, until it is stopped",
    "recover run": [["--config", "CONFIG"], ["--config", "LOGS"], ["--config", "CONFIG", "--json", "--dry-run"]],
    "recover commit": [["--config", "CONFIG", "n-1·x·1", "--yes"]],
    "recover rollback": [["--config", "CONFIG", "n-1·x·1", "--yes"]],
    "recover forget": [["--config", "CONFIG", "n-1·x·1", "--yes"]],
    "recover end": [["--config", "CONFIG", "n-1·x·1", "--yes", "--gone", "shop"]],
    "run": [["tests.no_such_app:app", "--config", "CONFIG"], ["a:b", "URL"]],
    "shop worker": [["--config", "CONFIG"]],
    "shop generate": [["--config", "CONFIG", "--wait", "0.1"]],
}
"""Each command → the arguments with which an open string reaches it, or why none does. Those that manage a broker,
which have all the same `--url`, are added below."""
SERVE: Final = frozenset({"broker", "console", "run", "shop worker", "shop generate", "outbox relay"})
"""They go on with an open string that is good."""


def leaves(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run."""
    below = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if path and not (below and below[0].required):
        yield path, parser
    for one in below:
        for name, parsed in one.choices.items():
            yield from leaves(parsed, f"{path} {name}".strip())


ALL: Final = dict(leaves(make_parser(whole=True)))
for _name, _parser in ALL.items():
    if "--url" in _parser._option_string_actions and _name not in COMMANDS:
        _needed = [one for one in _parser._actions if not one.option_strings and one.required and one.nargs != "*"]
        COMMANDS[_name] = [["--url", "URL", *("1" for _ in _needed)]]


def test_every_command_is_looked_at() -> None:
    assert sorted(COMMANDS) == sorted(ALL)


@pytest.mark.parametrize("number", range(len(FORMS)), ids=lambda number: FORMS[number].name)
def test_commands_print_none(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command meets a form or two of them, with one of three schemes; all forms in the test below."""
    for place, command in list(enumerate(sorted(COMMANDS)))[number % 16 :: 16]:
        scheme = ("postgresql", "amqp", "openwire+ssl")[(number + place) % 3]
        run_command(command, FORMS[number], scheme, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ALL_SCHEMES)
def test_commands_print_none_whatever_the_scheme(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command meets each form, with one of the schemes at least."""
    every = 4 if EVERY_POINT else len(ALL_SCHEMES)
    for place, command in enumerate(sorted(COMMANDS), ALL_SCHEMES.index(scheme)):
        for number in range(place % every, len(FORMS), every):
            run_command(command, FORMS[number], scheme, tmp_path, monkeypatch)


def run_command(command: str, form: Form, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = COMMANDS[command]
    if isinstance(templates, str) or (command in SERVE and not form.refused):
        return
    monkeypatch.chdir(tmp_path)
    words = {"URL": form.of(scheme)}
    for word in ("CONFIG", "LOGS"):
        if any(word in template for template in templates):
            words[word] = str(configured(tmp_path, form, scheme, logs=word == "LOGS"))

    for template in templates:
        said = [
            re.sub("CONFIG|LOGS|URL", lambda word: words[word[0]], one.replace("FOLDER", str(tmp_path)))
            for one in template
        ]
        try:
            main([*command.split(), *said])
        except SystemExit:
            pass
        except Exception as error:  # noqa: BLE001 — of a demo: its traceback is what the user sees
            check_raised(error)
