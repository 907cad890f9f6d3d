"""Fleet, device, releases and log in a real browser: hostile texts, thousands of rows, both themes, two widths."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.fleet_web.browser import Browser, hostile_page

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = ("/", "/device/pi-1", "/releases", "/release/digits", "/log", "/device/no-such")
READY = {"/": "pi-50", "/device/pi-1": "digits round 3", "/releases": "rolled-back", "/release/digits": "pi-2",
         "/log": "online, site hall", "/device/no-such": "has ever connected"}  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with hostile_page() as found:
        yield found


@pytest.mark.parametrize("path", PAGES)
def test_hostile_device_text_stays_text_on_accessible_pages(browser: Browser, address: str, path: str) -> None:
    browser.open(f"{address}{path}", width=1280)
    browser.wait_text(READY[path])
    assert browser.js("return window.owned") is None
    assert browser.violations() == []
    browser.look(320, dark=True)
    browser.wait(lambda: browser.js("return document.body.classList.contains('body--dark')"), "the dark theme")
    assert browser.overflow() == 0
    assert browser.violations() == []
    assert browser.errors() == []
    asked: list[str] = browser.js("return performance.getEntriesByType('resource').map(each => each.name)")
    assert [each for each in asked if not each.startswith((address, "data:"))] == []


def test_tables_send_fifty_rows_with_search_sort_and_pages(browser: Browser, address: str) -> None:
    browser.open(f"{address}/", width=1280)
    browser.wait_text("pi-50")
    count = "return [...document.querySelectorAll('.table-frame')].at(-1).querySelectorAll('tbody tr').length"
    assert browser.js(count) == 50
    assert "3,001 devices at 1 site: 1 training, 3,000 declining" in browser.text()
    assert len(json.dumps(browser.js("return document.documentElement.outerHTML"))) < 400_000
    browser.press("Next")
    browser.wait_text("51 to 100 of 3,001")
    browser.wait_for("input[type=search]").send_keys("9999")
    browser.wait_text("1 to 1 of 1")
    assert "training digits round 4, 50 %" in browser.text()
    browser.js("document.querySelector('input[type=search]').value = ''")
    browser.wait_for("input[type=search]").send_keys("pi-300")
    browser.wait_text("1 to 2 of 2")  # pi-300 and pi-3000
    browser.press("Device ▴")
    browser.wait(lambda: browser.js("return !!document.querySelector('th[aria-sort=descending]')"), "the other order")
    names = "return [...document.querySelectorAll('td[data-label=Device]')].map(each => each.innerText)"
    assert browser.js(names) == ["pi-3000", "pi-300"]


def test_cross_origin_page_cannot_read_or_send(browser: Browser, address: str) -> None:
    browser.driver.get("data:text/html,<title>elsewhere</title>")
    tried = browser.driver.execute_async_script(
        """
        const [address, done] = arguments;
        const path = '/_nicegui_ws/socket.io/?EIO=4&transport=';
        const socket = new WebSocket(address.replace('http', 'ws') + path + 'websocket');
        const connected = new Promise(end => {
            socket.onopen = () => end('open');
            socket.onerror = () => end('refused');
        });
        const asked = fetch(address + path + 'polling')
            .then(answer => answer.text(), () => 'refused');
        Promise.all([connected, asked]).then(done);
        """,
        address,
    )
    assert tried == ["refused", "refused"]


def test_theme_can_be_switched_and_is_remembered(browser: Browser, address: str) -> None:
    browser.open(f"{address}/releases", dark=False)
    browser.wait_text("rolled-back")
    dark = "return document.body.classList.contains('body--dark')"
    assert not browser.js(dark)
    browser.click("button.theme")
    browser.wait(lambda: browser.js(dark), "the dark theme")
    browser.open(f"{address}/releases", dark=False)
    browser.wait(lambda: browser.js(dark), "the dark theme again")
    browser.driver.delete_all_cookies()
