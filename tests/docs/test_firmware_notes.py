"""firmware_notes has a page for every board, says of each what the table says, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from edge_agent.limits.settings import LimitSettings
from fleet_sim.profiles.boards import PROFILES
from fleet_sim.profiles.training_time import training_seconds

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
"""Samples, and operations a sample, of the three workloads of README.md."""
BATCH = 32
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```", re.DOTALL)


def anchors(page: str) -> set[str]:
    """The headings of a page as a link names them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def told_times(page: str, row: str) -> list[float]:
    """The seconds in a row of the table of times; "under" stands for a bound."""
    (cells,) = re.findall(rf"^\| {re.escape(row)} \| (.+) \|$", page, re.MULTILINE)
    return [float(cell.removeprefix("under ").removesuffix(" s")) for cell in cells.split(" | ")]


def test_every_board_of_the_table_has_a_page() -> None:
    assert set(PAGE_OF) == set(PROFILES)
    assert set(PAGE_OF.values()) <= set(PAGES)


@pytest.mark.parametrize("board", PAGE_OF)
def test_a_page_names_its_profile(board: str) -> None:
    assert f"`{board}`" in PAGES[PAGE_OF[board]]


@pytest.mark.parametrize("board", PAGE_OF)
@pytest.mark.parametrize(
    ("row", "epochs", "warm"),
    [("one epoch, cold", 1, False), ("one epoch, warm", 1, True), ("five epochs, cold", 5, False)],
)
def test_times_of_visits_are_the_profile_s(board: str, row: str, epochs: int, warm: bool) -> None:
    device = PROFILES[board].device
    for (samples, cost), told in zip(WORKLOADS, told_times(PAGES[PAGE_OF[board]], row), strict=True):
        steps = -(-samples // BATCH)
        found = training_seconds(device, cost=cost, steps=steps * epochs, batch=samples / steps, warm=warm)
        assert told == pytest.approx(found, rel=0.1, abs=0.006)


def test_the_table_has_a_row_for_every_page() -> None:
    linked = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\)", PAGES["README.md"], re.MULTILINE)
    assert sorted(linked) == sorted(BOARDS)


@pytest.mark.parametrize("board", PAGE_OF)
def test_the_table_says_the_times_of_the_page(board: str) -> None:
    page = PAGE_OF[board]
    (row,) = re.findall(rf"^\| \[[^\]]+\]\({re.escape(page)}\).*$", PAGES["README.md"], re.MULTILINE)
    (times,) = re.findall(r"([\d.]+ / [\d.]+ / [\d.]+) s", row)
    assert [float(time) for time in times.split(" / ")] == told_times(PAGES[page], "one epoch, cold")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_pages_and_headings(name: str) -> None:
    for link in LINK.findall(CODE.sub("", PAGES[name])):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = FOLDER / (path or name)
        assert target.is_file(), f"{name} links to {link}"
        if heading:
            assert heading in anchors(target.read_text(encoding="utf-8")), f"{name} links to {link}"


@pytest.mark.parametrize("name", [*BOARDS, "provisioning.md"])
def test_every_page_leads_back_to_what_holds_for_all(name: str) -> None:
    assert "README.md" in LINK.findall(PAGES[name])


@pytest.mark.parametrize("name", BOARDS)
def test_every_board_says_what_a_person_asks(name: str) -> None:
    headings = " ".join(anchors(PAGES[name]))
    for word in ("system", "memory", "cooling", "power", "clock", "time-of-a-visit", "traps"):
        assert word in headings, f"{name} has no heading for {word}"


@pytest.mark.parametrize("name", BOARDS)
def test_every_board_says_where_its_times_are_from(name: str) -> None:
    _, _, times = PAGES[name].partition("\n## Time of a visit\n")
    assert re.search(r"\*derived\*|\*measured\*", times.split("\n## ")[0], re.IGNORECASE)


def test_the_limits_on_the_pages_are_taken_by_an_agent() -> None:
    blocks = [block for page in PAGES.values() for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    assert len(blocks) == 6
    for block in blocks:
        limits = msgspec.toml.decode(block, type=dict[str, LimitSettings])["limits"]
        assert limits.throttle_at is not None
        assert limits.stop_at is not None
