"""The source of an earlier version: as its fixture keeps it, or from the history of the repository."""

from __future__ import annotations

import subprocess
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("sojourn", "edge_agent", "hierarchy", "coordinator", "fleet_sim", "fleet_web")


def kept_source(version: str, folder: Path) -> Path:
    """Unpack the source that is kept with a version's fixture; `folder` is new."""
    with tarfile.open(ROOT / "tests" / "fixtures" / version / "source.tar.gz") as tar:
        tar.extractall(folder, filter="data")
    return with_commands(folder)


def keep_source(tree: Path, file: Path) -> None:
    """Pack what `kept_source` unpacks."""
    with tarfile.open(file, "w:gz") as tar:
        for name in ("pyproject.toml", *PACKAGES):
            tar.add(tree / name, name, filter=lambda it: None if it.name.endswith("__pycache__") else it)


def source_of(commit: str, folder: Path) -> Path:
    """Unpack the tree of a commit, with what an installation would say of its commands; `folder` is new."""
    got = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=False)
    if got.returncode:
        raise SystemExit(f"{commit} is not in the history that is here: {got.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(got.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return with_commands(folder)


def with_commands(tree: Path) -> Path:
    """Say what the tree's commands are, in the place of the installation that it does not have."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    told = tree / "sojourn-0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: sojourn\nVersion: 0\n")
    commands = project["entry-points"]["sojourn.commands"].items()
    (told / "entry_points.txt").write_text("\n".join(["[sojourn.commands]", *(f"{k} = {v}" for k, v in commands)]))
    return tree
