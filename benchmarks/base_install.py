"""Disk space of a device: a fresh venv with only the base install, as install.sh creates it, counted like `du`.

python -m benchmarks.base_install [--top 12]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests", "docs", "benchmarks")


def installed(folder: Path) -> Path:
    """Create a venv with the base install, from a copy, because a build leaves files in the sources."""
    source, venv = folder / "source", folder / "venv"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    checked = [*pip, "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    build = {**os.environ, "PYTHONPATH": str(folder / "build")}
    subprocess.run([*checked, "-r", "deploy/device/requirements.txt"], cwd=source, check=True)
    subprocess.run(
        [*checked, "--target", folder / "build", "-r", "deploy/build-requirements.txt"], cwd=source, check=True
    )
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "."], cwd=source, env=build, check=True)
    return venv


def sizes(venv: Path) -> Counter[str]:
    """Return bytes on the disk by package, and of all other files."""
    found: Counter[str] = Counter()
    seen = set()
    for path in venv.rglob("*"):
        status = path.lstat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        parts = path.relative_to(venv).parts
        inside = parts[parts.index("site-packages") + 1 :] if "site-packages" in parts else ()
        found[inside[0] if inside else "(the venv itself)"] += 512 * status.st_blocks
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--top", type=int, default=12)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = sizes(installed(Path(folder)))
    for name, size in found.most_common(arguments.top):
        print(f"{name:32}{size / 1e6:8.1f} MB")
    print(f"{'all':32}{found.total() / 1e6:8.1f} MB")


if __name__ == "__main__":
    main()
