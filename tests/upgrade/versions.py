"""The source of an earlier version, from the history of the repository: the repository itself has only the present."""

from __future__ import annotations

import subprocess
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEFORE = "2c84500c5dc5781f1f8b3a5253cefc85092f84cf"
"""The last commit of 0.1.0."""


def source_of(commit: str, folder: Path) -> Path:
    """Unpack the tree of a commit, with what an installation would say of its commands; `folder` is new."""
    got = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=False)
    if got.returncode:
        raise AssertionError(
            f"An earlier version is tried against this one, and its commit {commit[:7]} is not in the history that "
            f"is here ({got.stderr.decode().strip()}). A clone has it, and in a shallow one "
            f"`git fetch --unshallow` brings it. Without a clone: pytest --ignore tests/upgrade/test_mixed.py"
        )
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
