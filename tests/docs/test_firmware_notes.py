"""firmware_notes has a page for every board that agrees with the table, and its links are valid."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from edge_agent.limits import LimitSettings
from fleet_sim.board_profiles import PROFILES
from fleet_sim.world.timing import training_seconds

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "firmware_notes"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
PAGE_OF = {
    "raspberry-pi-zero-2": "raspberry-pi-zero-2-w.md",
    "raspberry-pi-4": "raspberry-pi-4.md",
    "raspberry-pi-5": "raspberry-pi-5.md",
    "jetson-nano": "jetson-nano.md",
    "jetson-orin": "jetson-orin-nano.md",
}
BOARDS = [name for name in PAGES if name not in {"README.md", "provisioning.md"}]
WORKLOADS = ((200, 20_224.0), (500, 8_438_352.0), (500, 75_630_336.0))
"""Samples, and operations per sample, of the three workloads of README.md."""
BATCH = 32
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```", re.DOTALL)


def anchors(page: str) -> set[str]:
    """Return the headings of a page as link anchors."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def listed_times(page: str, row: str) -> list[float]:
    """Return the seconds in a row of the table of times; "under" marks a bound."""
    (cells,) = re.findall(rf"^\| {re.escape(row)} \| (.+) \|$", page, re.MULTILINE)
    return [float(cell.removeprefix("under ").removesuffix(" s")) for cell in cells.split(" | ")]


def test_every_board_profile_has_a_page() -> None:
    assert set(PAGE_OF) == set(PROFILES)
    assert set(PAGE_OF.values()) <= set(PAGES)


@pytest.mark.parametrize("board", PAGE_OF)
def test_page_names_its_profile(board: str) -> None:
    assert f"`{board}`" in PAGES[PAGE_OF[board]]


@pytest.mark.parametrize("board", PAGE_OF)
@pytest.mark.parametrize(
    ("row", "epochs", "warm"),
    [("one epoch, cold", 1, False), ("one epoch, warm", 1, True), ("five epochs, cold", 5, False)],
)
def test_visit_times_match_the_profile(board: str, row: str, epochs: int, warm: bool) -> None:
    device = PROFILES[board].device
    for (samples, cost), listed in zip(WORKLOADS, listed_times(PAGES[PAGE_OF[board]], row), strict=True):
        steps = -(-samples // BATCH)
        found = training_seconds(device, cost=cost, steps=steps * epochs, batch=samples / steps, warm=warm)
        assert listed == pytest.approx(found, rel=0.1, abs=0.006)


def test_table_has_a_row_for_every_page() -> None:
    linked = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\)", PAGES["README.md"], re.MULTILINE)
    assert sorted(linked) == sorted(BOARDS)


@pytest.mark.parametrize("board", PAGE_OF)
def test_times_in_the_table_match_the_page(board: str) -> None:
    page = PAGE_OF[board]
    (row,) = re.findall(rf"^\| \[[^\]]+\]\({re.escape(page)}\).*$", PAGES["README.md"], re.MULTILINE)
    (times,) = re.findall(r"([\d.]+ / [\d.]+ / [\d.]+) s", row)
    assert [float(time) for time in times.split(" / ")] == listed_times(PAGES[page], "one epoch, cold")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_existing_pages_and_headings(name: str) -> None:
    for link in LINK.findall(CODE.sub("", PAGES[name])):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = FOLDER / (path or name)
        assert target.is_file(), f"{name} links to {link}"
        if heading:
            assert heading in anchors(target.read_text(encoding="utf-8")), f"{name} links to {link}"


@pytest.mark.parametrize("name", [*BOARDS, "provisioning.md"])
def test_every_page_links_to_the_common_page(name: str) -> None:
    assert "README.md" in LINK.findall(PAGES[name])


@pytest.mark.parametrize("name", BOARDS)
def test_every_board_page_has_the_required_headings(name: str) -> None:
    headings = " ".join(anchors(PAGES[name]))
    for word in ("system", "memory", "cooling", "power", "clock", "time-of-a-visit", "traps"):
        assert word in headings, f"{name} has no heading for {word}"


@pytest.mark.parametrize("name", BOARDS)
def test_every_board_page_marks_times_as_derived_or_measured(name: str) -> None:
    _, _, times = PAGES[name].partition("\n## Time of a visit\n")
    assert re.search(r"\*derived\*|\*measured\*", times.split("\n## ")[0], re.IGNORECASE)


def test_limits_on_the_pages_are_valid_settings() -> None:
    blocks = [block for page in PAGES.values() for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    assert len(blocks) == 6
    for block in blocks:
        limits = msgspec.toml.decode(block, type=dict[str, LimitSettings])["limits"]
        assert limits.throttle_at is not None
        assert limits.stop_at is not None
