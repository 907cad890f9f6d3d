"""Jobs that start from weights in a file or from another form of an earlier job's model, and train a part of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.jobs.data import public_data
from coordinator.jobs.model import exported_model, job_model, named_tensors
from coordinator.jobs.settings import read_job
from coordinator.records import JobCompiled, JobSubmitted
from coordinator.releases.making import from_job
from coordinator.rounds.preparing import KitCache, PrepareJob, prepare, recipe_of
from coordinator.rounds.starting import StartModel
from coordinator.state import CoordinatorState
from sojourn.errors import JobError, ModelError
from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.predictions import Predictor
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.spec import Kit
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.small_fleet import fedavg
from tests.there import there

FOLDER = TemporaryDirectory(prefix="sojourn-weights-")
BLOBS = MemoryBlobs()
HEAD = ["3.*"]
"""mlp is Sequential(Flatten, Linear, ReLU, Linear)."""


@cache
def weights_file(seed: int = 7) -> str:
    """Return a state dict of the small model with weights that differ from the job's."""
    read = read_job(fedavg(seed=seed), "a test")
    path = Path(FOLDER.name) / f"{seed}.pth"
    torch.save(job_model(read, public_data(read).input, 10).state_dict(), path)
    return str(path)


def given(seed: int = 7) -> dict[str, np.ndarray]:
    return {name: each.numpy() for name, each in torch.load(weights_file(seed), weights_only=True).items()}


def made(start: StartModel | None = None, **changes: Any) -> tuple[JobCompiled, Kit, np.ndarray]:
    compiled = prepare(PrepareJob("job", fedavg(**changes), start=start), BLOBS, KitCache())
    kit = unpack_blob(BLOBS.read(compiled.kit.digest), Kit)
    return compiled, kit, vectors.load(BLOBS, compiled.vectors["model"], kit.model)


def same(kit: Kit, vector: np.ndarray, wanted: dict[str, np.ndarray]) -> bool:
    tensors = named_tensors(kit, vector)
    return tensors.keys() == wanted.keys() and all(np.array_equal(tensors[name], wanted[name]) for name in wanted)


def test_job_starts_from_weights_file() -> None:
    _, kit, vector = made(model__start=weights_file())
    assert kit.frozen == ()
    assert same(kit, vector, given())


def test_untrained_tensors_are_in_kit_and_not_in_vector() -> None:
    _, kit, vector = made(model__start=weights_file(), model__trains=HEAD)
    assert [each.name for each in kit.model.tensors] == ["3.weight", "3.bias"]
    assert [each.name for each in kit.frozen] == ["1.weight", "1.bias"]
    assert same(kit, vector, given())


def test_new_head_is_drawn_from_job_seed() -> None:
    _, kit, vector = made(model__start=weights_file(), model__new_head=True)
    drawn = named_tensors(*made()[1:])
    old = given()
    assert same(kit, vector, {**old, "3.weight": drawn["3.weight"], "3.bias": drawn["3.bias"]})


def test_unsuitable_weights_file_fails_at_once() -> None:
    with pytest.raises(ModelError, match=r"7.pth does not fit the model: 3 of another shape or type \(1.weight is"):
        made(model__start=weights_file(), model__options__hidden=[9])


def test_changed_weights_file_changes_the_recipe() -> None:
    def recipe(**changes: Any) -> str:
        read = read_job(fedavg(**changes), "a test")
        return recipe_of(read, public_data(read))

    first = recipe(model__start=weights_file())
    assert first == recipe(model__start=weights_file(), model__source="somewhere", model__licence="MIT") != ""
    others = [
        recipe(), recipe(model__start=weights_file(8)), recipe(model__start=weights_file(), model__trains=HEAD),
        recipe(model__start=weights_file(), model__new_head=True),
    ]  # fmt: skip
    assert len({first, *others}) == 5
    with pytest.raises(JobError, match="cannot be read on this machine: No such file"):
        recipe(model__start="/nowhere/a.pth")


def earlier(**changes: Any) -> StartModel:
    compiled, _, _ = made(**changes)
    return StartModel("round 1 of job 'a'", compiled.kit, there(compiled.initial))


def test_partly_trained_job_starts_from_earlier_job() -> None:
    start = earlier(model__start=weights_file())
    compiled, kit, vector = made(start, model__start="job:a", model__trains=HEAD)
    assert [each.name for each in kit.frozen] == ["1.weight", "1.bias"]
    assert same(kit, vector, given())
    assert compiled.recipe == ""


def test_partly_trained_job_passes_on_all_its_weights() -> None:
    start = earlier(model__start=weights_file(), model__trains=HEAD)
    _, kit, vector = made(start, model__start="job:a", model__trains=["*"])
    assert same(kit, vector, given())
    _, kit, vector = made(start, model__start="job:a", model__trains=["1.*"])
    assert [each.name for each in kit.frozen] == ["3.weight", "3.bias"]
    assert same(kit, vector, given())
    with pytest.raises(JobError, match=r"has tensors that were not trained: .* model.trains = \[\"\*\"\] for all"):
        made(start, model__start="job:a")


def test_exported_model_can_be_a_start(tmp_path: Path) -> None:
    for trains in (None, HEAD):
        _, kit, vector = made(model__start=weights_file(), model__trains=trains)
        path = tmp_path / "it.onnx"
        path.write_bytes(exported_model(kit, vector))
        assert same(*made(model__start=str(path))[1:], given())
        x = np.random.default_rng(1).random((3, 1, 8, 8), np.float32)
        assert np.isfinite(Predictor(path.read_bytes()).logits(x)).all()


def test_release_matches_torch_without_the_weights_file(tmp_path: Path) -> None:
    path = tmp_path / "it.pth"
    path.write_bytes(Path(weights_file()).read_bytes())
    about = {"model__source": "a shop's photos", "model__licence": "CC-BY-4.0"}
    text = fedavg(model__start=str(path), model__trains=HEAD, **about)
    state = CoordinatorState()
    state.apply(JobSubmitted("job", text, "ticket"))
    compiled = prepare(PrepareJob("job", text), BLOBS, KitCache())
    state.apply(compiled)
    path.unlink()
    kit = unpack_blob(BLOBS.read(compiled.kit.digest), Kit)
    vector = vectors.load(BLOBS, compiled.vectors["model"], kit.model)
    shown, test = (unpack_blob(BLOBS.read(there(ref).digest), Exemplars) for ref in (compiled.exemplars, compiled.test))
    asked = MakeRelease("t", "job", "digits", 1)
    card = from_job(state.jobs["job"], asked, kit, vector, shown, test).card
    assert (card.source, card.licence) == ("a shop's photos", "CC-BY-4.0")
