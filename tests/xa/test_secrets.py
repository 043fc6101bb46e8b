"""These tests cover passwords: where they are read from, and where they must not appear."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from sqlalchemy import make_url

from dtx.broker.command import _set_user
from dtx.broker.config import BrokerConfig, load
from dtx.store.contract import StoreError
from dtx.store.sql.store import open_database
from rm_db.address import Address
from tm.config import configuration_from
from xa import Code, XaError, xa_error
from xa.configuration import ConfigurationError
from xa.open_string import OpenString
from xa.secrets import expanded, hide, masked, not_set

SECRET = "p@ss/w%rd:x y#?&"  # noqa: S105 — nobody's


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://shop:secret@db/shop", "postgresql://shop:…@db/shop"),
        (
            "at postgresql://shop:se:cr@t/@db:5432/shop?x=1 it failed",
            "at postgresql://shop:…@db:5432/shop?x=1 it failed",
        ),
        ("amqp://db:5672", "amqp://db:5672"),
        ("amqp://db:5672/?heartbeat=1", "amqp://db:5672/?heartbeat=1"),
        ("'amqp://127.0.0.1:5672'", "'amqp://127.0.0.1:5672'"),
        ("postgresql://shop:secret", "postgresql://shop:…"),
        ("host=db password=secret user=shop", "host=db password=… user=shop"),
        ("postgresql://db/shop?user=shop&password=secret&x=1", "postgresql://db/shop?user=shop&password=…&x=1"),
        ("password_env=NAME", "password_env=NAME"),
        ("nothing: of the kind, a=b", "nothing: of the kind, a=b"),
        ("svc:s3cret@broker", "svc:…@broker"),
        ("'postgres:/shop:p@ss/w@db/shop' is no URL", "'postgres:/shop:…@db/shop' is no URL"),
        ("at 10:30 by somebody@example.com", "at 10:30 by somebody@example.com"),
    ],
)
def test_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


def test_a_password_in_a_variable_may_hold_any_character() -> None:
    for text in ("postgresql://shop:${PW}@db:5432/shop", "postgresql://db/shop?user=shop&password=${PW}"):
        url = make_url(expanded(text, {"PW": SECRET}))
        assert (url.password or url.query.get("password")) == SECRET
        assert url.host == "db"
        assert url.database == "shop"


def test_a_url_that_is_wholly_a_variable_is_taken_as_it_is() -> None:
    url = "postgresql://shop:p%40ss@db/shop?x=1"
    assert expanded("${URL}", {"URL": url}) == url
    assert expanded("orders-${HOST}", {"HOST": "a/b"}) == "orders-a/b"
    assert expanded("file:///var/${HOST}/log", {"HOST": "pod-1"}) == "file:///var/pod-1/log"
    assert expanded("sqlite:////var/${HOST}/x.db", {"HOST": "a b"}) == "sqlite:////var/a b/x.db"
    with pytest.raises(KeyError, match="NONE"):
        expanded("x${NONE}", {})


def test_password_env_puts_the_password_in() -> None:
    url = OpenString.parse("postgresql://shop@db/shop?x=1&password_env=PW", {"PW": SECRET}).url
    assert make_url(url).password == SECRET
    assert make_url(url).query == {"x": "1"}
    assert OpenString.parse("postgresql://db/shop", {}).url == "postgresql://db/shop"
    with pytest.raises(
        ValueError, match="password_env: the environment variable PW is not set; set it for this process"
    ):
        OpenString.parse("postgresql://shop@db/shop?password_env=PW", {})
    with pytest.raises(ValueError, match="without a password"):
        OpenString.parse("postgresql://shop:x@db/shop?password_env=PW", {"PW": SECRET})


def test_password_env_is_for_databases_logs_and_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", SECRET)
    address = Address.parse("postgresql://shop@db/shop?password_env=PW&xa_pool_size=3")
    assert make_url(address.url).password == SECRET
    monkeypatch.delenv("PW")
    with pytest.raises(XaError, match="the environment variable PW is not set; set it for this process"):
        Address.parse("postgresql://shop@db/shop?password_env=PW")
    with pytest.raises(StoreError, match="the environment variable PW is not set; set it for this process"):
        open_database("postgresql://shop@db/shop?password_env=PW")


def test_variables_stand_anywhere_in_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HOSTNAME": "pod-7", "PW": SECRET, "STORE": "sqlite:///x.db", "QUEUE": "o"}.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "xabridge.toml"
    path.write_text(
        "node = 'orders-${HOSTNAME}'\nlog = 'file:///var/${HOSTNAME}'\n"
        "[resources]\nshop = 'postgresql://shop:${PW}@db/shop'\n"
        "[broker]\nstore = '${STORE}'\nlisten = ['127.0.0.1:0']\n[broker.permissions.x]\nconsume = ['${QUEUE}.*']\n",
        encoding="utf-8",
    )

    configuration = configuration_from(path)
    assert configuration.node == "orders-pod-7"
    assert configuration.log == "file:///var/pod-7"
    shop: Any = configuration.resources["shop"]
    assert make_url(shop.url).password == SECRET
    assert load(path, {}).store == "sqlite:///x.db"
    monkeypatch.delenv("STORE")
    with pytest.raises(match=r"broker\.store: the environment variable STORE is not set"):
        load(path, {})


@pytest.fixture
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xa.secrets._HIDDEN", {})


@pytest.mark.usefixtures("_nothing_hidden")
def test_a_secret_that_is_in_use_is_masked_wherever_it_stands() -> None:
    secret = "a'b\"c\\d é\n%1"  # noqa: S105 — nobody's
    text = f"{secret} {secret!r} {quote(secret, safe='')} {quote_plus(secret)} {json.dumps(secret)} {(1, repr(secret))}"
    hide(secret)
    assert set(re.split(r"[^\w…]+", masked(text))) <= {"", "…", "1"}
    assert str(xa_error(Code.XAER_RMERR, f"refused: {secret}")) == "XAER_RMERR: refused: …"


@pytest.mark.usefixtures("_nothing_hidden")
def test_words_of_messages_are_not_masked() -> None:
    for one in ("", "secret1", "password", "127.0.0.1:5672"):
        hide(one)
    hide("postgres-1", "postgresql://postgres-1:…@db/shop")
    text = "password secret1 127.0.0.1:5672 postgres-1"
    assert masked(text) == text


@pytest.mark.usefixtures("_nothing_hidden")
def test_an_open_string_that_is_only_looked_at_hides_nothing() -> None:
    OpenString.parse("amqp://shop:Typed-By-Someone@a")
    assert masked("Typed-By-Someone") == "Typed-By-Someone"
    OpenString.parse("amqp://shop:Typed-By-Someone@a?sslpassword=Another-One", {})
    assert masked("Typed-By-Someone Another-One") == "… …"


@pytest.mark.usefixtures("_nothing_hidden")
def test_so_many_secrets_are_hidden_at_once() -> None:
    for number in range(1000):
        hide(f"Secret-{number:04}")
    assert masked("Secret-0999 Secret-0000") == "… Secret-0000"


@pytest.mark.parametrize("name", ["Geh3im-Pw", "geheim", "${geheim}", ""])
def test_a_secret_in_the_place_of_a_variables_name_is_not_shown(name: str) -> None:
    assert "geh" not in not_set(name).lower().replace("…", "")
    with pytest.raises(ValueError, match="its name is not shown") as caught:
        OpenString.parse(f"amqp://shop@a/?password_env={name}", {})
    assert "eh" not in str(caught.value).split("password_env")[1].split(":")[0]
    with pytest.raises(ConfigurationError) as refused:
        _set_user(BrokerConfig(users=Path("users")), f"shop={name or 'x'}")
    assert "geh" not in str(refused.value).lower()
