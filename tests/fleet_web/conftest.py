"""Shared fixtures of the web page's tests: one browser, and result folders of small simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fleet_web.browser import Browser, chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a process."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A simulation with travelling models and lost hops, and one whose models each visit one device."""
    from fleet_sim import simulate

    folder = tmp_path_factory.mktemp("runs")
    common = {"rounds": 3, "seed": 1, "availability": {"dropout": 0.2}}
    fleet = {"data": "digits", "devices": 10, "sites": 2, "engine": "serial"}
    for strategy in ("visit", "fedavg"):
        settings = {"name": strategy, "strategy": strategy, "simulation": fleet, **common}
        simulate(settings, folder / strategy)
    return {strategy: folder / strategy for strategy in ("visit", "fedavg")}
