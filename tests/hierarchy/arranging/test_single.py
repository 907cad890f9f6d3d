"""FedAvg's single devices."""

from __future__ import annotations

import pytest

from hierarchy.arranging.arrangement import ArrangeContext, Candidates, ClientSet, arrange
from sojourn.parts import SingleArranger


def everywhere(count: int) -> Candidates:
    devices = tuple(f"d{number:03}" for number in range(count))
    return Candidates(devices, {"hall": frozenset(devices)})


def made(arranger: SingleArranger, candidates: Candidates, seed: int = 1) -> tuple[ClientSet, ...]:
    return arrange(arranger, candidates, ArrangeContext(seed)).sets


def test_single_takes_all_devices_in_order() -> None:
    candidates = everywhere(5)
    expected = tuple(ClientSet("hall", (device,)) for device in candidates.devices)
    assert made(SingleArranger(), candidates) == made(SingleArranger(), candidates, 2) == expected


@pytest.mark.parametrize(
    ("fraction", "devices", "count"), [(0.1, 5, 1), (0.5, 5, 2), (0.99, 5, 4), (0.29, 100, 29), (0.1, 30, 3)]
)
def test_single_rounds_down_to_at_least_one(fraction: float, devices: int, count: int) -> None:
    sets = made(SingleArranger(fraction=fraction), everywhere(devices), 7)
    assert len(sets) == count
    assert list(sets) == sorted(sets, key=lambda each: each.devices)


def test_single_draw_depends_on_the_seed() -> None:
    candidates = everywhere(50)
    assert made(SingleArranger(fraction=0.2), candidates) != made(SingleArranger(fraction=0.2), candidates, 2)


def test_single_assigns_tours_to_the_least_busy_site() -> None:
    candidates = Candidates(("a", "b", "c", "d"), {"n": frozenset("abd"), "s": frozenset("bcd")})
    assert [each.site for each in made(SingleArranger(), candidates)] == ["n", "s", "s", "n"]
