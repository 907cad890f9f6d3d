"""A real Chromium for the tests of the web page: one process for all tests, with screenshots and axe-core."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

from tests.ports import free_ports, is_listening
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".venv" / "axe" / "axe.min.js"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--force-device-scale-factor=1", "--no-proxy-server",
)  # fmt: skip
NOT_YET = (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
"""Errors of a page that is still changing: the element is covered, hidden, or was replaced since it was found."""
STARTS = 3
"""Number of attempts to start chromedriver: selenium's timeout of about half a minute is not configurable."""
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


class Browser:
    """A browser under a test's control: it opens pages, waits for content, and checks for problems."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page in a window of this size, in light or dark mode."""
        self.driver.get("about:blank")  # a page whose server has stopped keeps requesting it
        self.errors()
        self.look(width, height, dark=dark)
        self.driver.get(address)

    def look(self, width: int, height: int = 900, *, dark: bool = False, still: bool = True) -> None:
        """Set the window's size and theme. still: emulate the preference for reduced motion."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def js(self, script: str, *arguments: Any) -> Any:
        """Return the result of a script."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        """Return the elements that currently match a CSS selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        """Return the visible text of an element."""
        found: str = self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return found

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until the condition returns something, and return that."""
        found: Any = None

        def holds() -> bool:
            nonlocal found
            try:
                found = condition()
            except NOT_YET:
                return False
            return bool(found)

        wait_until(holds, what, lambda: f"the page shows:\n{self.text()[:3000]}")
        return found

    def wait_for(self, selector: str) -> Any:
        """Wait for an element that matches a CSS selector, and return the first one."""
        return self.wait(lambda: self.all(selector), f"an element {selector}")[0]

    def wait_text(self, words: str, selector: str = "body") -> None:
        """Wait until this text is visible."""
        self.wait(lambda: words in self.text(selector), f"the text {words!r}")

    def click(self, selector: str) -> None:
        """Click the first element that matches a CSS selector."""
        self._click(lambda: self.all(selector), selector)

    def press(self, words: str) -> None:
        """Click the button with this label."""
        self._click(lambda: [it for it in self.all("button") if it.text == words and it.is_displayed()], words)

    def _click(self, find: Callable[[], list[Any]], what: str) -> None:
        """Click once the element is stationary and uncovered, because a click targets a position on the page."""
        before: object = None

        def clicked() -> bool:
            nonlocal before
            (found, *_) = find() or [None]
            place, before = before, found and (found.id, found.rect)
            if found is None or place != before:
                return False
            found.click()
            return True

        self.wait(clicked, f"{what!r} to be clicked")

    def shot(self, path: Path, *, whole: bool = True) -> Path:
        """Save a screenshot of the whole page, or only of its visible part."""
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": whole, "format": "png"})
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window; it should not scroll horizontally."""
        return int(self.js("return document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def violations(self, within: str | None = None) -> list[str]:
        """Return violations of WCAG 2.1 A and AA that axe-core finds, a line each."""
        if not AXE.exists():
            raise AssertionError("axe-core is missing: .ci/install-axe fetches it (make install does)")
        if not self.js("return !!window.axe"):
            self.js(AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(
            "const [within, tags, done] = arguments;"
            "axe.run(within ?? document, {runOnly: {type: 'tag', values: tags}, resultTypes: ['violations']})"
            ".then(found => done(found.violations), error => done([{id: String(error), nodes: []}]))",
            within,
            WCAG,
        )
        return [
            f"{it['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
            for it in found
            for node in it["nodes"] or [{"html": ""}]
        ]

    def errors(self) -> list[str]:
        """Return the errors in the browser's console since the last call."""
        return [json.dumps(it["message"]) for it in self.driver.get_log("browser") if it["level"] == "SEVERE"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser with a new, empty profile; remove both afterwards."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if not all(programs):
        raise AssertionError("the tests of the page need Debian's chromium and chromium-driver")
    folder = tempfile.mkdtemp(prefix="chromium-")
    options = ChromeOptions()
    options.binary_location = str(programs[0])
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.add_experimental_option("browserStartupTimeout", int(LIMIT * 1000))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = _started(options, str(programs[1]))
    driver.set_page_load_timeout(LIMIT)
    driver.set_script_timeout(LIMIT)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
        shutil.rmtree(folder, ignore_errors=True)


def _started(options: ChromeOptions, program: str) -> Chrome:
    for left in reversed(range(STARTS)):
        try:
            return Chrome(options, ChromeService(program))
        except WebDriverException as error:
            if not left or "connect to the Service" not in str(error):
                raise
    raise AssertionError("unreachable")


@contextmanager
def web(*arguments: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run `sojourn web` with these arguments on a free port, yield its address, and stop it afterwards."""
    port = free_ports(1)[0]
    with _served([sys.executable, "-m", "sojourn.cli", "web", "--port", str(port), *arguments], port, env) as address:
        yield address


@contextmanager
def hostile_page() -> Iterator[str]:
    """Serve pages with thousands of devices whose texts try to inject markup."""
    port = free_ports(1)[0]
    with _served([sys.executable, "-m", "tests.fleet_web.fake_source", str(port)], port) as address:
        yield address


@contextmanager
def _served(command: list[str], port: int, env: dict[str, str] | None = None) -> Iterator[str]:
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # open as long as the process runs
    process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(env or {})}, cwd=ROOT)

    def printed() -> str:
        log.seek(0)
        return log.read()

    def over_or_listening() -> bool:
        return process.poll() is not None or is_listening(port)

    try:
        wait_until(over_or_listening, "sojourn web to listen", printed)
        assert process.poll() is None, f"sojourn web did not start: {printed()}"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
