"""What a visit says of data that is odd beside the job: to the owner with values, to the operator without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.training.trainer import Trainer, attempt
from edge_agent.training.work import Trained
from sojourn.data.source import DataSettings
from sojourn.node.machine import Did, DidNot
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import ValueRange
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import compiled, visit_for, write_data

if TYPE_CHECKING:
    from pathlib import Path


def outcome(folder: Path, values: ValueRange | None, **settings: Any) -> Did | DidNot:
    blobs = MemoryBlobs()
    work = visit_for(blobs)
    kit = pack_blob(msgspec.structs.replace(compiled().kit, values=values))
    blobs.put(kit, ref_of(kit).digest)
    order = msgspec.structs.replace(work.visit, kit=ref_of(kit))
    trainer = Trainer(blobs, DataSettings(path=str(folder / "data.npz"), **settings))
    return attempt("v", msgspec.structs.replace(work, visit=order), trainer, lambda _step, _steps: None)


@pytest.fixture
def values(tmp_path: Path) -> tuple[float, float]:
    x, _ = write_data(tmp_path / "data.npz")
    return float(x.min()), float(x.max())


def trained(found: Did | DidNot) -> Trained:
    assert isinstance(found, Did), found
    assert isinstance(found.outcome, Trained)
    return found.outcome


def test_data_on_the_jobs_scale_is_no_news(tmp_path: Path, values: tuple[float, float]) -> None:
    for expected in (None, ValueRange(*values), ValueRange(*values, demanded=True)):
        assert trained(outcome(tmp_path, expected)).note == ""


def test_another_scale_is_noted_and_trained_on_all_the_same(tmp_path: Path, values: tuple[float, float]) -> None:
    far = ValueRange(0, 1000 * values[1])
    done = trained(outcome(tmp_path, far))
    assert done.note.startswith("values are on another scale: the job's exemplars go from 0 to")
    assert f"{values[1]:g}" not in done.note.replace(f"{far.high:g}", "")
    assert f"they go from {values[0]:g} to {values[1]:g}" in done.warnings[0]


def test_an_owner_can_bring_values_to_the_scale(tmp_path: Path, values: tuple[float, float]) -> None:
    low, high = values
    scale = f"{low}..{high} to 0..255"
    assert trained(outcome(tmp_path, ValueRange(0, 255, demanded=True), scale=scale)).note == ""


def test_a_demand_that_is_not_met_declines(tmp_path: Path, values: tuple[float, float]) -> None:
    found = outcome(tmp_path, ValueRange(values[1] + 1, values[1] + 2, demanded=True))
    assert isinstance(found, DidNot)
    assert found.reason == "data"
    assert "the job demands values from" in found.detail
    assert "data.scale" in found.detail


def test_what_is_left_out_is_counted_for_the_operator_and_named_for_the_owner(tmp_path: Path) -> None:
    _, y = write_data(tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as file:
        x, names = file["x"], file["y"].astype("U20")
    names[:3] = "mine alone"
    np.savez(tmp_path / "data.npz", x=x, y=names)
    done = trained(outcome(tmp_path, None))
    assert done.note == f"3 of {len(y)} samples are left out"
    assert "mine alone" in done.warnings[-1]
