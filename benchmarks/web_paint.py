"""Time to the first paint of a job's page with 2,000 simulated devices, relative to an empty page of NiceGUI.

    sojourn plan --strategy visit --devices 2000 --rounds 10 --dropout 0.05 -o /tmp/fleet
    python -m benchmarks.web_paint /tmp/fleet

Turns alternate. *paint*: the browser's own first contentful paint; *shown*: until the picture of the tours is visible.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.fleet_web.browser import ROOT, Browser, chromium, web
from tests.sojourn.brokers.guarded_broker import free_ports

EMPTY = """
from nicegui import ui
import sys
@ui.page("/")
def page():
    ui.label("empty").classes("ready")
ui.run(port=int(sys.argv[1]), host="127.0.0.1", show=False, reload=False, show_welcome_message=False)
"""
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
TURNS = 10


def measured(browser: Browser, address: str, selector: str) -> tuple[float, float]:
    browser.driver.execute_cdp_cmd("Network.clearBrowserCache", {})
    browser.driver.get("about:blank")
    began = time.monotonic()
    browser.driver.get(address)
    browser.wait_for(selector)
    shown = 1000 * (time.monotonic() - began)
    return browser.wait(lambda: browser.js(PAINT), "a paint"), shown


def kilobytes(folder: str) -> int:
    """Return the memory of the server that shows this folder."""
    found = subprocess.run(["ps", "-eo", "rss=,args="], capture_output=True, text=True, check=True).stdout
    return max(int(line.split()[0]) for line in found.splitlines() if "sojourn.cli web" in line and folder in line)


def main() -> None:
    folder = sys.argv[1]
    port = free_ports(1)[0]
    empty = subprocess.Popen([sys.executable, "-c", EMPTY, str(port)], cwd=ROOT)
    times: dict[str, list[tuple[float, float]]] = {"empty": [], "job": []}
    try:
        with web("--results", folder) as address, chromium() as browser:
            browser.look(1280, 900)
            time.sleep(4)
            job = f"{address}/job/simulation?of={Path(folder).name}"
            for _ in range(TURNS + 1):
                times["empty"].append(measured(browser, f"http://127.0.0.1:{port}/", ".ready"))
                times["job"].append(measured(browser, job, ".ring"))
            memory = kilobytes(folder)
    finally:
        empty.terminate()
    medians = {}
    for name, found in times.items():
        paint, shown = (statistics.median(column) for column in zip(*found[1:], strict=True))
        medians[name] = paint, shown
        print(f"{name:6} first paint {paint:6.0f} ms, shown {shown:6.0f} ms (medians of {TURNS})")
    ratios = [one / other for one, other in zip(medians["job"], medians["empty"], strict=True)]
    print(f"ratio  first paint {ratios[0]:.2f} x, shown {ratios[1]:.2f} x; memory {memory / 1024:.0f} MB")


if __name__ == "__main__":
    main()
