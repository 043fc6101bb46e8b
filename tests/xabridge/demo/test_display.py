"""These tests draw the bar of the demo on terminals of any width."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from xabridge.demo.display import Display


@pytest.mark.parametrize("columns", [20, 60, 200])
def test_what_is_drawn_again_fits_on_one_line(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    display = Display(live=True, quiet=False)
    display.preparing("starting the broker and PostgreSQL, which takes a while, and longer than one thinks")
    for done in range(5):
        display.show(done / 4, "orders 1,612 / 2,000   rows 1,608   invoices 1,608   in doubt 4   214 tx/s")
    display.event("kill -9 broker")
    display.close()
    drawn = [text for text in re.split(r"\r\x1b\[2K", capsys.readouterr().out) if not text.endswith("\n")]
    assert len(drawn) > 5
    assert max(map(len, drawn)) < columns
