"""A visit's warnings on data that does not fit the job: with values for the owner, without for the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.training.messages import Trained
from edge_agent.training.trainer import Trainer, attempt
from sojourn.data.source import DataSettings
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import ValueRange
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import compiled, visit_for, write_data

if TYPE_CHECKING:
    from pathlib import Path


def outcome(folder: Path, values: ValueRange | None, **settings: Any) -> WorkDone | WorkFailed:
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


def trained(found: WorkDone | WorkFailed) -> Trained:
    assert isinstance(found, WorkDone), found
    assert isinstance(found.outcome, Trained)
    return found.outcome


def test_data_on_the_expected_scale_adds_no_note(tmp_path: Path, values: tuple[float, float]) -> None:
    for expected in (None, ValueRange(*values), ValueRange(*values, demanded=True)):
        assert trained(outcome(tmp_path, expected)).note == ""


def test_unexpected_scale_is_noted_and_still_trained(tmp_path: Path, values: tuple[float, float]) -> None:
    far = ValueRange(0, 1000 * values[1])
    done = trained(outcome(tmp_path, far))
    assert done.note.startswith("values are on another scale: the job's exemplars range from 0 to")
    assert f"{values[1]:g}" not in done.note.replace(f"{far.high:g}", "")
    assert f"they range from {values[0]:g} to {values[1]:g}" in done.warnings[0]


def test_owner_can_rescale_values_with_data_scale(tmp_path: Path, values: tuple[float, float]) -> None:
    low, high = values
    scale = f"{low}..{high} to 0..255"
    assert trained(outcome(tmp_path, ValueRange(0, 255, demanded=True), scale=scale)).note == ""


def test_unmet_value_range_demand_declines_the_visit(tmp_path: Path, values: tuple[float, float]) -> None:
    found = outcome(tmp_path, ValueRange(values[1] + 1, values[1] + 2, demanded=True))
    assert isinstance(found, WorkFailed)
    assert found.reason == "data"
    assert "the job requires values from" in found.detail
    assert "data.scale" in found.detail


def test_operator_gets_skipped_count_and_owner_gets_class_names(tmp_path: Path) -> None:
    _, y = write_data(tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as file:
        x, names = file["x"], file["y"].astype("U20")
    names[:3] = "mine alone"
    np.savez(tmp_path / "data.npz", x=x, y=names)
    done = trained(outcome(tmp_path, None))
    assert done.note == f"3 of {len(y)} samples are skipped"
    assert "mine alone" in done.warnings[-1]
