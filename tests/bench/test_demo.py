"""The demo, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_every_order_once_although_the_manager_is_killed() -> None:
    command = [sys.executable, "-m", "tm.cli", "demo", "--orders", "300", "--kills", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["exact"]
    assert result["kills"] == 3
    assert result["orders"] == result["rows"] == result["invoices"] == 300
    assert result["in_doubt"] == 0


@pytest.mark.slow
def test_it_says_in_lines_what_happened() -> None:
    command = [sys.executable, "-m", "tm.cli", "demo", "--orders", "60", "--kills", "1", "--plain"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "kill -9 manager" in done.stdout
    assert "every order once as a row and once as an invoice: 60 = 60 = 60" in done.stdout
