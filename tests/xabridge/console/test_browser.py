"""The console in a real browser: every page at two widths without a horizontal scroll bar, by the rules of
accessibility, without a violation of its own policy; the keyboard; what moves; hostile names; and whole errands."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from dtx.broker.settings import QueueSettings, Settings
from rm_amqp import Message
from rm_amqp.management import ManagementClient
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.cli.field import Field
from tests.xabridge.console.scene import PASSWORD, broker_with_users, console, node, scene, url
from tests.xabridge.traffic import Traffic, post
from xabridge.console.server import Server

CHROMIUM: Final = shutil.which("chromium")
DECIDED: Final = "orders-1·3fa91c·8231"
HOSTILE: Final = "<script>document.title='x'</script>\"'><img src=x onerror=alert(1)>"
expect.set_options(timeout=30_000)  # for machines that are busy
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("console in a browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]


class Scene:
    """What the tests of this module share: a broker, a node, and a console that serves."""

    def __init__(self, broker: EmbeddedBroker, field: Field, server: Server) -> None:
        self.broker = broker
        self.field = field
        self.base = server.address.rstrip("/")
        self.server = server


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The scene."""
    folder: Path = tmp_path_factory.mktemp("scene")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "plugin")
        with scene(folder, query=HOSTILE) as (broker, field, server):
            traffic = Traffic(url(broker))
            name = HOSTILE.replace("/", "|")
            traffic.post(name, *(Message(HOSTILE, id=HOSTILE, properties={HOSTILE: "\u202e" + HOSTILE}),) * 2)
            traffic.reject(name, 1)
            traffic.close()
            yield Scene(broker, field, server)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


class Window:
    """A window of the browser, and what its console said."""

    def __init__(self, browser: Browser, base: str, width: int = 1440, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.context.set_default_timeout(60_000)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.base = base
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))

    def _said(self, message: Any) -> None:
        if message.type in {"error", "warning"} and "status of" not in message.text:
            self.complaints.append(message.text)

    def go(self, path: str) -> None:
        """Opens a page."""
        self.page.goto(f"{self.base}{path}")

    def sign_in(self, user: str = "operator") -> None:
        """Signs in, with the keyboard alone."""
        self.go("/login")
        expect(self.page.get_by_label("User of the broker")).to_be_focused()
        self.page.keyboard.type(user)
        self.page.keyboard.press("Tab")
        self.page.keyboard.type(PASSWORD)
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_role("button", name="Sign out")).to_be_visible()


@pytest.fixture
def window(browser: Browser, shown: Scene) -> Iterator[Window]:
    """A window in which the operator has signed in."""
    made = Window(browser, shown.base)
    made.sign_in()
    yield made
    made.context.close()
    assert made.complaints == []


def pages() -> list[str]:
    """Every page, with content where there is any; with XABRIDGE_LONG=all also with other content."""
    hostile = quote(HOSTILE.replace("/", "|"), safe="")
    more = [
        "/queues?q=%3Cscript%3E", "/nodes?show=last", "/b/main/user", "/b/main/queue?name=orders.dead",
        f"/b/main/queue?name={hostile}", "/b/main/change/purge?queue=orders", "/b/main/change/retry?queue=orders.dead",
        "/b/main/change/close-connection?connection=1",
    ]  # fmt: skip
    return [
        "/", "/queues", "/dead", "/transactions",
        f"/transactions/one?name={quote(DECIDED)}", f"/transactions/act?act=rollback&name={quote(DECIDED)}",
        "/transactions/recover", "/nodes", "/pipelines", "/connections", "/users", "/audit",
        "/b/main/user?name=orders-svc", f"/b/main/queue?name={hostile}.dead",
        "/b/main/change/delete-queue?queue=orders", f"/b/main/change/move?queue={hostile}",
        "/b/depot/queue?name=orders", "/no/such/page", *(more if os.environ.get("XABRIDGE_LONG") == "all" else ()),
    ]  # fmt: skip


def test_every_page_in_every_look(browser: Browser, shown: Scene) -> None:
    window = Window(browser, shown.base, color_scheme="light", reduced_motion="reduce")  # no colours on their way
    axe, page = Axe(), window.page
    wide: list[tuple[str, int]] = []
    broken: list[tuple[str, str, str]] = []

    def check(path: str, width: int, *rules: str) -> None:
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            wide.append((path, width))
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:  # it is in the page already
            options["runOnly"] = {"type": "rule", "values": list(rules)}
            found = page.evaluate("options => axe.run(document, options).then(told => told.violations)", options)
        else:
            found = axe.run(page, options=options).response["violations"]
        broken.extend((path, one["id"], one["nodes"][0]["html"][:200]) for one in found)

    def look(path: str) -> None:
        page.set_viewport_size({"width": 1440, "height": 900})
        page.emulate_media(color_scheme="light")
        window.go(path)
        check(path, 1440)
        page.set_viewport_size({"width": 390, "height": 900})
        page.emulate_media(color_scheme="dark")
        check(path, 390, "target-size", "scrollable-region-focusable", "color-contrast")

    look("/login")
    window.sign_in()
    for path in pages():
        look(path)
    window.context.close()
    assert wide == []
    assert broken == []
    assert window.complaints == []


@pytest.mark.parametrize("count", [0, 3, 1000])
def test_the_overview_fits_one_screen_where_all_is_well(browser: Browser, tmp_path: Path, count: int) -> None:
    """With a node. Then one queue is paused, and the keyboard leads from the first page to it."""
    settings = Settings(queues={f"queue-{number:04}": QueueSettings() for number in range(count)})
    broker = broker_with_users(tmp_path / "broker", settings=settings)
    try:
        with node() as watched, console([("main", url(broker))], nodes=(watched,)) as server:
            window = Window(browser, server.address.rstrip("/"))
            window.sign_in()
            page = window.page
            expect(page.get_by_text(f"Nothing is wrong: {count} queues of 1 broker, 1 node looked at.")).to_be_visible()
            expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollHeight") <= 900
            if count:
                with ManagementClient(url(broker)) as management:
                    management.ask("pause-queue", queue="queue-0001")
                expect(page.get_by_role("link", name="1 queue of main is paused: queue-0001 (0)")).to_be_visible()
                expect(page.get_by_role("link", name="Does work flow? trouble")).to_be_visible()

                for _ in range(30):  # behind the pages, the user's buttons and the three answers
                    page.keyboard.press("Tab")
                    if page.evaluate("document.activeElement.textContent").startswith("1 queue of main is paused"):
                        break
                page.keyboard.press("Enter")
                expect(page.get_by_role("heading", name="queue-0001")).to_be_visible()
            window.context.close()
            assert window.complaints == []
    finally:
        broker.stop()


def test_nodes_and_pipelines(window: Window) -> None:
    page = window.page
    window.go("/nodes")
    expect(page.get_by_role("heading", name="orders-1")).to_be_visible()
    bars = page.get_by_role("img", name="prepare").first
    expect(bars).to_be_visible()
    assert "log: decision" in (bars.get_attribute("aria-label") or "")
    assert page.locator("svg.timeline").count() == 3
    page.get_by_role("link", name="Latest").click()
    expect(page.get_by_role("heading", name="Latest transactions")).to_be_visible()
    expect(page.locator("svg.timeline")).to_have_count(3)
    expect(page.get_by_text("can't be reached")).to_be_visible()

    window.go("/")
    page.get_by_role("heading", name="Pipelines").get_by_role("link").click()
    expect(page.get_by_role("heading", name="revenue")).to_be_visible()
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    expect(page.get_by_role("img", name="work ").first).to_be_visible()
    page.get_by_role("link", name="clicks").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("clicks")


def test_what_moves_is_brought_up_to_date(window: Window, shown: Scene) -> None:
    page = window.page
    window.go("/queues?q=parcels")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="parcels", exact=True))
    expect(row).to_contain_text("1")
    page.get_by_role("link", name="parcels", exact=True).focus()
    post(url(shown.broker), "parcels", *(Message(number) for number in range(40)))
    expect(row).to_contain_text("41")
    expect(page.get_by_role("link", name="parcels", exact=True)).to_be_focused()
    pause = page.get_by_role("button", name="Pause updates")
    pause.click()
    expect(page.get_by_role("button", name="Updates are paused")).to_have_attribute("aria-pressed", "true")


def test_the_keyboard_the_menu_and_the_switch(window: Window) -> None:
    page = window.page
    window.go("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    window.go("/b/main/queue?name=orders.dead")
    page.get_by_role("link", name="Retry…").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry")

    for width, rows in {1440: 1, 1100: 1, 1024: 1, 800: 1, 390: 3}.items():
        page.set_viewport_size({"width": width, "height": 900})
        entries = "[...document.querySelectorAll('.top li a')]"
        tops = page.evaluate(f"{entries}.map(one => Math.round(one.getBoundingClientRect().top))")
        assert len(set(tops)) == rows, (width, tops)
        assert all(tops.count(top) == len(tops) // rows for top in tops), (width, tops)
        ends = "['.brand', '.who'].map(one => document.querySelector(one).getBoundingClientRect().top)"
        brand, leave = page.evaluate(ends)
        assert abs(brand - leave) < 20, "name and way out are in one row"

    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_one_dead_letter_is_retried_and_one_is_opened(window: Window) -> None:
    page = window.page
    window.go("/")
    page.get_by_role("link", name="rejected").first.click()
    page.get_by_role("link", name="orders.dead").first.click()
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Retry…").click()
    expect(page.get_by_text("retry 1 message of orders.dead to where they came from")).to_be_visible()
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Done")
    expect(page.get_by_text("1 message done of 1")).to_be_visible()

    window.go(f"/b/main/queue?name={quote(HOSTILE.replace('/', '|'), safe='')}")
    page.get_by_role("table", name="Messages of the queue").get_by_role("link").first.click()
    page.get_by_role("button", name="Open the content").click()
    expect(page.locator("pre")).to_have_text(HOSTILE)
    assert page.title().endswith("xabridge")
    assert page.locator("main script, main img").count() == 0


def test_a_transaction_is_finished_by_hand(window: Window, shown: Scene) -> None:
    """A click is not lost when the page moves under it."""
    page = window.page
    window.go("/transactions")
    page.get_by_role("link", name=DECIDED).hover()
    page.mouse.down()
    page.evaluate("show(live.innerHTML + '<p>news</p>')")
    page.mouse.up()
    expect(page.get_by_role("heading", name=DECIDED)).to_be_visible()
    page.get_by_role("img", name="Decision: commit").hover()
    page.mouse.down()
    page.evaluate("show(live.innerHTML + '<p>news</p>')")
    expect(page.get_by_text("news")).to_have_count(0)
    page.mouse.up()
    expect(page.get_by_text("news")).to_be_visible()

    page.get_by_role("link", name="Commit…").first.click()
    expect(page.get_by_text("commits the branch on broker: as recovery would")).to_be_visible()
    page.get_by_role("button", name="Commit").click()
    expect(page.get_by_text(f"{DECIDED} on shop: committed")).to_be_visible()
    assert DECIDED not in shown.field.run("recover", "list", "--names").stdout


def test_who_has_no_permissions_and_whose_session_is_over(browser: Browser, shown: Scene) -> None:
    window = Window(browser, shown.base)
    window.sign_in("orders-svc")
    expect(window.page.get_by_text("may not view this broker").first).to_be_visible()
    assert "orders.dead" not in window.page.content()
    window.page.get_by_role("button", name="Sign out").click()
    expect(window.page.get_by_label("Password")).to_be_visible()
    window.sign_in()
    window.go("/queues")
    key = next(one["value"] for one in window.context.cookies() if one["name"] == "xabridge")
    shown.server.console.sessions.find(key, active=False).over = True  # type: ignore[union-attr]
    expect(window.page.get_by_label("Password")).to_be_visible()
    assert "next=%2Fqueues" in window.page.url
    window.context.close()
    assert window.complaints == []
