"""The pictures of docs/console.md, made from the scene of the tests: python -m tools.console_pictures"""

# ruff: noqa: S311, SLF001 — it makes up an hour of what the console has seen
from __future__ import annotations

import math
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from playwright.sync_api import sync_playwright

from tests.xabridge.console.scene import PASSWORD, scene
from xabridge.console.history import SLOT_S, SLOTS, History

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER: Final = Path(__file__).parents[1] / "docs" / "console"
QUEUES: Final = (
    ("orders", 5),
    ("invoices", 2),
    ("parcels", 3),
    ("orders.dead", 1),
    ("parcels.dead", 1),
    ("clicks", 4),
    ("alerts", 2),
)


def an_hour(history: History) -> None:
    """An hour of traffic that no one waited for, in place of what was seen until now."""
    chance, now = random.Random(1), time.monotonic() + SLOT_S * SLOTS  # a machine may have started a minute ago
    made = History()
    history._rings, history._clock = made._rings, lambda: time.monotonic() + SLOT_S * SLOTS
    history._began = time.monotonic()
    for slot in range(SLOTS):
        made._clock = lambda at=now - (SLOTS - 1 - slot) * SLOT_S: at  # type: ignore[misc]
        wave = 10 + 8 * math.sin(slot / 9) + chance.random() * 3
        made.note(
            {
                "name": name, "lasting": True, "depth": share * (5 + 4 * math.sin(slot / 7 + share) + chance.random()),
                "rate-in": wave / share, "rate-out": wave / share * (0.9 + 0.2 * chance.random()),
            }
            for name, share in QUEUES
        )  # fmt: skip


def take(page: Page, base: str, folder: Path) -> None:
    """Takes the pictures."""
    page.goto(base)
    page.get_by_label("User of the broker").fill("operator")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Flow").wait_for()
    page.wait_for_timeout(3000)
    page.screenshot(path=folder / "overview.png")
    page.goto(f"{base}pipelines")

    page.get_by_role("heading", name="Batches").wait_for()
    page.set_viewport_size({"width": 1100, "height": 760})
    page.wait_for_timeout(1000)
    page.screenshot(path=folder / "pipelines.png")
    page.goto(f"{base}transactions")
    page.get_by_role("link", name="orders-1·3fa91c·8231").click()
    page.get_by_role("link", name="Roll back…").first.click()
    page.locator("svg.picture").wait_for()
    page.set_viewport_size({"width": 1100, "height": 600})
    page.screenshot(path=folder / "transaction.png")


def main() -> None:
    """Writes them."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        sys.path.insert(0, str(folder / "plugin"))
        with scene(folder) as (_, _, server):
            an_hour(server.console.histories["main"])
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 1560}, color_scheme="light")
            take(page, server.address, FOLDER)
            browser.close()


if __name__ == "__main__":
    main()
