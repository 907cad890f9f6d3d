"""Tests of all finishers: inputs come in plan order, results are checked, and state is kept."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.finishers.finishing import finish
from coordinator.finishers.task import Finished, FinishTask, MemberModel
from coordinator.rounds.finishing import voters_of
from sojourn.errors import ConfigError, JobError
from sojourn.model import vectors
from sojourn.model.vectors import flat
from sojourn.parts import OwnFinisher
from tests.coordinator.rounds.test_closing import DEVICES, KIT, SAMPLES, SPEC, Home, mean

HERE = "tests.coordinator.finishers.test_finishing"


class Farthest(msgspec.Struct, frozen=True):
    """A custom finisher: the model that is farthest from the mean; it counts its rounds."""

    less: float = 0.0

    def finish(self, task: FinishTask) -> Finished:
        ways = [float(np.linalg.norm(each.load() - task.mean)) for each in task.members]
        names = " ".join(f"{each.name}:{each.samples:g}" for each in task.members)
        seen = np.append(task.state.get("seen", np.zeros(0, np.float32)), np.float32(task.seed % 1000))
        model = task.members[int(np.argmax(ways))].load() - np.float32(self.less)
        return Finished(model, {"seen": seen.astype(np.float32)}, notes=(f"of {names}",))


class InvalidResult(msgspec.Struct, frozen=True):
    """A finisher with invalid results, or without a model."""

    what: str

    def finish(self, task: FinishTask) -> object:
        broken = task.mean * np.float32(np.nan)
        return {
            "nothing": None,
            "short": Finished(task.mean[:1]),
            "nan": Finished(broken),
            "wide": Finished(task.mean.astype(np.float64)),
            "state of nan": Finished(state={"memory": broken}),
            "square state": Finished(state={"memory": task.mean.reshape(1, -1)}),
            "too much": Finished(state={str(number): task.mean for number in range(65)}),
            "voters": Finished(voters=True),
        }[self.what]


def home(part: str = "Farthest", **settings: Any) -> Home:
    return Home({f"finisher.{key}": value for key, value in {"name": f"{HERE}:{part}", **settings}.items()})


def test_finisher_gets_members_in_plan_order_and_sets_model() -> None:
    tried = home(less=0.5)
    closed = tried.close()
    assert tried.model(closed) == [0.5, -0.5, -0.5]  # a is farther from the mean than d
    assert closed.report.failures == ("of " + " ".join(f"{name}:{SAMPLES[name]}" for name in DEVICES),)
    seen = vectors.load(tried.blobs, closed.vectors["finisher-seen"], flat(1))
    assert closed.wire_vectors.keys() == {"model"}  # what it keeps is not sent
    assert len(seen) == 1


def test_finisher_state_carries_over_rounds() -> None:
    tried = home()
    closed = tried.close()
    tried.state.vectors = closed.vectors
    tried.state.history = [closed.report]
    again = tried.close()
    seen = vectors.load(tried.blobs, again.vectors["finisher-seen"], flat(2))
    assert seen[0] != seen[1]  # another round, another seed
    assert seen[:1].tolist() == vectors.load(tried.blobs, closed.vectors["finisher-seen"], flat(1)).tolist()


def test_closing_again_gives_same_bits() -> None:
    tried = home()
    assert tried.close().vectors == tried.close().vectors


def test_round_without_models_is_not_finished() -> None:
    tried = home()
    tried.state.arrived, tried.state.given_up = {}, dict.fromkeys(range(4), "gone")
    assert tried.fail().reason.startswith("no device could train")


def test_refused_tour_is_not_a_member() -> None:
    tried = home()
    tried.brings(3, [np.nan, 0, 0], tried.report("d", 1.0))
    closed = tried.close()
    assert closed.report.failures[0] == "of a:32 b:64 c:96"


def test_voting_members_are_kept_unchanged() -> None:
    tried = home("InvalidResult", what="voters")
    closed = tried.close()
    assert [vectors.load(tried.blobs, ref, SPEC)[0] for ref in voters_of(closed.vectors)] == [1, 2, 3, 4]
    assert tried.model(closed) == mean(**SAMPLES)


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("nothing", "returned NoneType, not coordinator.finishers.task.Finished"),
        ("short", r"its model is float32 of shape \(1,\), not 3 numbers"),
        ("nan", "its model is not finite"),
        ("wide", "its model is float64"),
        ("state of nan", 'its state "memory" is not finite'),
        ("square state", r'its state "memory" is float32 of shape \(1, 3\)'),
        ("too much", "keeps 65 vectors, more than 64"),
    ],
)
def test_invalid_result_names_the_finisher(what, complaint) -> None:
    with pytest.raises(JobError, match=complaint):
        home("InvalidResult", what=what).close()


def test_missing_finisher_is_reported_when_job_is_read() -> None:
    with pytest.raises(ConfigError, match="lacks the methods finish"):
        home("MemberModel").state.settings.parts()


def test_memory_limit_rejects_many_members_with_advice() -> None:
    members = [MemberModel("a", 1.0, lambda: np.zeros(3, np.float32))] * 1000
    task = FinishTask(members, np.zeros(3, np.float32), KIT, None, 0)  # type: ignore[arg-type]
    task.check_room(0.02, "finisher.memory")
    with pytest.raises(JobError, match=r"1000 models of 3 numbers .* finisher.memory = 0.01 allows less: raise it"):
        task.check_room(0.01, "finisher.memory")


def test_custom_finisher_gets_its_task() -> None:
    members = [MemberModel(str(n), 1.0, lambda n=n: np.full(3, n, np.float32)) for n in (1, 5, 2)]  # type: ignore[misc]
    task = FinishTask(members, np.zeros(3, np.float32), KIT, None, 0)  # type: ignore[arg-type]
    assert finish(OwnFinisher(part=f"{HERE}:Farthest"), task).model.tolist() == [5, 5, 5]  # type: ignore[union-attr]
