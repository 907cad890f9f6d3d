"""Run the tests several times, and list every test that did not pass every time: `make test-repeat N=10 BUSY=4`.

Each run takes the files in another random order by default, and starts with empty folders for everything that programs
keep between two runs. With busy processes next to it, a run shows which tests depend on the speed of the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

REPORTS = Path("build/repeat")
KEPT = ("PATH", "LANG", "CI")
"""Variables of the caller that a run gets, too."""
FOLDERS = {"HOME": "home", "TMPDIR": "tmp", "RAY_TMPDIR": "ray", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config",
           "XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run"}  # fmt: skip


def main() -> int:
    """Run the tests N times; returns the exit code: 1 if a test did not pass every time."""
    parser = argparse.ArgumentParser(prog="python -m tests.repeat", description="Run the tests several times.")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="Number of runs. Default: 10.")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="Number of busy processes. Default: 0.")
    parser.add_argument("--in-order", action="store_true", help="Longest files first, as `make test` runs them.")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="Seed of the first run's order of files.")
    parser.add_argument("pytest", nargs="*", help="Arguments for pytest, after --.")
    options = parser.parse_args()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    not_passed: defaultdict[str, Counter[str]] = defaultdict(Counter)
    broken = 0
    for run in range(1, options.runs + 1):
        report, seed = REPORTS / f"{run}.xml", options.seed + run - 1
        start = time.monotonic()
        order = [] if options.in_order else [f"--shuffle-files={seed}"]
        code = _run([*options.pytest, *order, f"--junit-xml={report}"], options.busy)
        outcomes = _outcomes(report)
        for test, outcome in outcomes.items():
            if outcome != "passed":
                not_passed[test][outcome] += 1
        counts = Counter(outcomes.values())
        broken += bool(code) and not (counts["failed"] or counts["error"])
        print(
            f"run {run} of {options.runs}: {', '.join(f'{counts[each]} {each}' for each in sorted(counts))}; "
            f"{(time.monotonic() - start) / 60:.1f} min, {options.busy} busy processes, "
            f"{' '.join(order) or 'longest files first'}, exit code {code}",
            flush=True,
        )
    for test, counts in sorted(not_passed.items()):
        print(f"{test}: {', '.join(f'{each} in {counts[each]}' for each in counts)} of {options.runs} runs")
    print(f"{len(not_passed)} tests did not pass every time in {options.runs} runs; reports: {REPORTS}")
    return 1 if not_passed or broken else 0


def _run(arguments: list[str], busy: int) -> int:
    """Run pytest once, with empty folders and next to busy processes; returns its exit code."""
    with ExitStack() as stack:
        # Short, since sockets are created in it and their paths have at most 103 characters.
        new = tempfile.TemporaryDirectory(prefix="run.", dir="/tmp", ignore_cleanup_errors=True)
        place = Path(stack.enter_context(new))
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        for variable, folder in FOLDERS.items():
            (place / folder).mkdir(mode=0o700)
            environment[variable] = str(place / folder)
        for _ in range(busy):
            process = subprocess.Popen(["yes"], stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode


def _outcomes(report: Path) -> dict[str, str]:
    """Outcome of each test; empty if pytest did not write its report."""
    if not report.exists():
        return {}
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {each.tag for each in case} & {"failure", "error", "skipped"}
        outcome = {"failure": "failed", "error": "error", "skipped": "skipped"}[min(kinds)] if kinds else "passed"
        test = f"{case.get('classname')}::{case.get('name')}"
        found[test] = outcome if found.get(test, "passed") == "passed" else found[test]
    return found


if __name__ == "__main__":
    sys.exit(main())
