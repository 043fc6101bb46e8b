"""These tests check that docs/qpid.md says what the code does: its table of options, and its example over it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rm_amqp import Message
from rm_amqp.amqp010.settings import OPTIONS, parse
from tests.broker_j import BrokerJ
from tests.docs.guide import ROOT, blocks
from tests.docs.test_tables_of_settings import rows
from tests.rm_amqp.amqp010.client import QpidClient
from tests.rm_amqp.client import RMID
from tm import TransactionManager

PAGE = ROOT / "docs" / "qpid.md"
SHOWN = re.compile(r"\d+|true|false")


def test_every_option_is_named_once_with_its_default() -> None:
    table = rows("qpid.md", "0-10 option")
    assert sorted(name for names, _ in table for name in names) == sorted([*OPTIONS, "password_env"])
    settings = parse("amqp010://127.0.0.1")
    for names, default in table:
        if SHOWN.fullmatch(default):
            value = getattr(settings, OPTIONS[names[0]][0])
            assert default == (str(value).lower() if isinstance(value, bool) else f"{value:g}"), names[0]


def test_every_field_of_a_message_is_in_the_table() -> None:
    named = {name for names, _ in rows("qpid.md", "`Message`") for name in names}
    assert named >= {name for name in Message.__slots__ if name != "inferred"}


def test_the_example_runs(broker_j: BrokerJ, tmp_path: Path) -> None:
    broker_j.make("orders", "invoices")
    namespace: dict[str, Any] = {}
    (code,) = [block.code for block in blocks(PAGE) if block.language == "python"]
    exec(compile(code, str(PAGE), "exec"), namespace)  # noqa: S102 — our own
    with TransactionManager("guide-1", f"file://{tmp_path}/log", {"qpid": broker_j.url}, background=False) as manager:
        with manager.begin() as tx:
            tx["qpid"].send("orders", Message("Ada"))
        with manager.begin() as tx:
            namespace["invoice"](tx["qpid"])
    client = QpidClient(broker_j.url)
    assert client.look("invoices") == [{"order": "Ada"}]
    assert client.look("orders") == []
    client.rm.close("", RMID)
