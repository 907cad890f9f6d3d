"""A simulation that an earlier version began, and was killed in, is resumed."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from tests.upgrade.command_fleet import sojourn
from tests.upgrade.kept import VERSIONS, unpack

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", VERSIONS)
def test_an_interrupted_simulation_goes_on_to_the_same_end(version: str, tmp_path: Path) -> None:
    folder = unpack(version, tmp_path, "simulation.tar.gz")
    begun = (folder / "half" / "rounds.csv").read_text()
    # Since 0.5.0 a round that has closed, and is in the checkpoint, may not be in the table yet: it is being tested.
    assert (folder / "half" / "checkpoint.bin").exists()
    assert len(begun.splitlines()) < 5
    sojourn("simulate", "--resume", "half", folder=folder)
    assert (folder / "half" / "rounds.csv").read_text().startswith(begun)
    ours, theirs = ([*csv.DictReader((folder / it / "rounds.csv").open())] for it in ("half", "whole"))
    for our, their in zip(ours, theirs, strict=True):
        assert [our[it] for it in ("round", "tours", "visits", "lost")] == [
            their[it] for it in ("round", "tours", "visits", "lost")
        ]
        # A CPU of another kind may see one digit or two otherwise; a round makes ten times that.
        assert abs(float(our["accuracy"]) - float(their["accuracy"])) < 0.01
