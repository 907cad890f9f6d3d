"""The pages of this repository: their sections, blocks of code, and commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_SKIPPED = {".git", ".venv", "build", "node_modules", ".pytest_cache", ".hypothesis"}
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^(?P=indent)```\s*$", re.DOTALL | re.MULTILINE)
_ROLES = ("sojourn broker", "sojourn coordinator run", "sojourn edge run", "sojourn agent run")


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line of prose before it."""

    language: str
    text: str
    before: str

    @property
    def commands(self) -> list[str]:
        """The shell commands of the block; lines after a backslash are joined, comments are left out."""
        whole = re.sub(r"\\\n\s*", " ", self.text)
        return [
            line.split("  #")[0].strip() for line in whole.splitlines() if line.strip() and not line.startswith("#")
        ]


def pages() -> list[Path]:
    """Return all pages, without those of installed packages and builds."""
    return [path for path in sorted(ROOT.rglob("*.md")) if not _SKIPPED.intersection(path.relative_to(ROOT).parts)]


def section(page: str, heading: str) -> str:
    """Return the text under a heading, up to the next one of any level."""
    _, found, rest = page.partition(f"\n{heading}\n")
    assert found, f"there is no {heading!r}"
    outside = re.sub(
        r"^```.*?^```", lambda block: re.sub(r"(?m)^#", "\0", block[0]), rest, flags=re.DOTALL | re.MULTILINE
    )
    return re.split(r"\n#{1,4} ", outside)[0].replace("\0", "#")


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a text."""
    found = []
    for match in _FENCE.finditer(text):
        before = [line for line in text[: match.start()].splitlines() if line.strip()]
        plain = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        found.append(Block(match["language"], plain, " ".join(before[-4:])))
    return found


def runs_on(command: str) -> bool:
    """Return whether a command runs until it is stopped, and so needs a separate terminal."""
    return command.startswith(_ROLES)
