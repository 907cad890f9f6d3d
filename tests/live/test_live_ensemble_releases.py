"""Releases of jobs that end with several models: what is shipped, what is refused with a reason, and who predicts.

All through operator commands, on agents as processes over a real Mosquitto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.jobs.data import digits_split
from coordinator.releases.file import read_release
from edge_agent.inference.model import Model
from tests import forked
from tests.live.live_fleet import FLEET
from tests.live.released_fleet import DEVICES, ReleasedFleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from subprocess import CompletedProcess

JOB = """
name = "{name}"
threads = 1
gate = {{ on = false }}
{strategy}
[training]
epochs = 2
lr = 0.01
[data]
test = "{folder}/test.npz"
exemplars = "{folder}/exemplars.npz"
exemplars_per_class = 10
[fleet]
devices = 3
[model]
{model}
"""
PLAIN = 'name = "mlp"\noptions = { hidden = [16] }'
NORMED = 'name = "tests.fleet_sim.batchnorm_net:NormalisedRows"\noptions = { classes = 10 }'
VOTE = 'strategy = "fedov"\nfinisher = { epochs = 5 }'
RING = 'strategy = "metafed"\nschedule = { trips = 1 }\nobjective = { warmup = 1 }'
NORMS = 'strategy = "fedbn"\nrounds = 1'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleasedFleet]:
    live = ReleasedFleet(tmp_path_factory.mktemp("ensembles"))
    for part, train in (("test", False), ("exemplars", True)):
        x, y = digits_split(train=train)
        np.savez(live.folder / f"{part}.npz", x=x, y=y)
    yield live
    live.stop()


def run(fleet: ReleasedFleet, name: str, strategy: str, model: str):
    """Return the coordinator's view of a finished job."""
    view = fleet.run(JOB.format(name=name, strategy=strategy, model=model, folder=fleet.folder), name)
    assert view.status == "done", view.detail
    return view


def create(fleet: ReleasedFleet, job: str, version: int, *more: str) -> CompletedProcess[str]:
    """Run `sojourn release create` for a job."""
    line = ("--line", "digits", "--version", str(version), "-o", str(file_of(fleet, version)))
    return forked.run("release", "create", job, *line, *more, *at(fleet))


def at(fleet: ReleasedFleet) -> tuple[str, ...]:
    broker = fleet.brokers["cloud"]
    return "--broker", f"{broker.host}:{broker.port}", "--fleet", FLEET


def file_of(fleet: ReleasedFleet, version: int) -> Path:
    return fleet.folder / f"digits-{version}.release"


def roll_out(fleet: ReleasedFleet, version: int) -> str:
    # Accuracy and speed are not under test.
    easy = ("--max-accuracy-drop", "1", "--max-drift", "1", "--max-latency", "1000")
    how = ("--stages", "100%", "--soak", "0.2", "--timeout", "600", "--watch", "--key", fleet.folder / "release.key")
    return forked.sojourn("release", "rollout", *map(str, (file_of(fleet, version), *how, *easy)), *at(fleet))


def right_answers(fleet: ReleasedFleet, version: int) -> set[float]:
    """Return the share of correct predictions of each device on the test set, with the model on its disk."""
    x, y = digits_split(train=False)
    found = set()
    for device in DEVICES:
        with Model("digits", fleet.store(device)) as model:
            assert model.version == version
            answers = model.predict(x.reshape(-1, 1, 8, 8))
            assert answers.shape == (len(y), 10)  # FedOV's models have one class more: the unknown
            found.add(float(np.mean(answers.argmax(axis=1) == y)))
    return found


def test_vote_ships_its_student_and_every_device_predicts(fleet: ReleasedFleet) -> None:
    last = run(fleet, "vote", VOTE, PLAIN).history[-1]
    made = create(fleet, "vote", 1)
    assert made.returncode == 0, made.stderr
    output = " ".join(forked.sojourn("release", "show", str(file_of(fleet, 1))).split())
    assert "learned from the vote of the devices' models, not the vote itself" in output
    card = read_release(file_of(fleet, 1)).card
    assert card.accuracy == pytest.approx(last.accuracy, abs=1e-6)
    assert last.metrics["vote_accuracy"] != pytest.approx(last.accuracy, abs=1e-6)
    assert "digits 1 is done; 3 serving" in roll_out(fleet, 1)
    (share,) = right_answers(fleet, 1)
    assert share == pytest.approx(card.accuracy, abs=1e-6)


def test_ring_ships_only_if_a_round_is_named(fleet: ReleasedFleet) -> None:
    run(fleet, "ring", RING, PLAIN)
    refused = create(fleet, "ring", 2)
    assert refused.returncode != 0
    output = " ".join(refused.stderr.split())
    assert "the result of this job is a model for each device, which never left it" in output
    assert "set its round (--round)" in output
    assert not file_of(fleet, 2).exists()
    made = create(fleet, "ring", 2, "--round", "2")
    assert made.returncode == 0, made.stderr
    assert "ring's last device" in read_release(file_of(fleet, 2)).card.data
    assert "digits 2 is done; 3 serving" in roll_out(fleet, 2)
    assert len(right_answers(fleet, 2)) == 1


@pytest.mark.parametrize(
    ("name", "model", "ships"), [("norms", NORMED, False), ("no-norms", PLAIN, True)], ids=["some", "none"]
)
def test_job_with_batchnorm_kept_on_devices_does_not_ship(
    fleet: ReleasedFleet, name: str, model: str, *, ships: bool
) -> None:
    run(fleet, name, NORMS, model)
    made = create(fleet, name, 3, "--round", "1")
    assert (made.returncode == 0) == ships, made.stderr
    assert file_of(fleet, 3).exists() == ships
    if not ships:
        assert "whose BatchNorm layers never left it" in " ".join(made.stderr.split())
