"""The gate's rules with exact numbers: a loss that is a parabola, so that every slope can be worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from sojourn.errors import InvalidBlob
from sojourn.model.exemplar_view import MAX_LOSSES, ExemplarView
from sojourn.model.exemplars import Exemplars
from sojourn.model.gate_rules import (
    Update,
    against,
    confusion,
    cosine_to_descent,
    counted_samples,
    granted_samples,
    longest_update,
    rise_of,
    too_long,
)
from sojourn.model.graphs import Graphs
from sojourn.parts import Dyn, Elmy, Gate, Sgd, TourBounds, Training
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec
from sojourn.protocol.task import Strata, TaskSpec
from tests.hierarchy.edge.test_gate import task
from tests.sojourn.protocol.examples import kit_without_graphs

KIT = kit_without_graphs(ModelSpec((TensorSpec("w", (2,)),)), InputSpec((1,)))
BOUNDS = TourBounds(against_factor=1.2, least_cosine=-0.5)
GATE = Gate(loss_factor=2.0)


class Parabola(Graphs):
    """The loss of a batch is |w|^2 times the mean of its inputs; counts how often it is asked."""

    asked = 0

    def loss(self, vector, x, y) -> float:
        self.asked += 1
        return float(x.mean() * (vector @ vector))

    def loss_and_gradient(self, vector, x, y, noise=(), reference_models=(), streams=None) -> tuple[float, Any]:
        self.asked += 1
        return float(x.mean() * (vector @ vector)), (2 * x.mean() * vector).astype(np.float32)


def view(*inputs: float) -> tuple[ExemplarView, Parabola]:
    graphs = Parabola(KIT)
    shown = np.array(inputs or (1.0,), np.float32).reshape(-1, 1)
    return ExemplarView(KIT, graphs, Exemplars.of(shown, np.zeros(len(shown), np.int64))), graphs


def update(before, after) -> Update:
    models = [np.array(model, np.float32) for model in (before, after)]
    digests = [model.tobytes() for model in models]
    return Update(models[0], models[1], (digests[0], digests[1]))


def objection(before, after, gate=GATE, bounds=BOUNDS, objective=None) -> str | None:
    refusal = against(update(before, after), view()[0], gate, bounds, task(objective=objective))
    return refusal.why if refusal else None


def test_loss_is_the_batch_mean_and_cached_per_model() -> None:
    seen, graphs = view(*[1.0] * 64, *[4.0] * 32)  # two batches, the second of half the size
    model = np.array([1.0, 2.0], np.float32)
    for _ in range(2):
        assert seen.loss(model, b"model") == 10.0
        assert seen.gradient(model, b"model").tolist() == [4.0, 8.0]
    assert graphs.asked == 4


def test_loss_cache_evicts_the_least_recently_used() -> None:
    seen, graphs = view()
    for number in range(MAX_LOSSES):
        seen.loss(np.zeros(2, np.float32), b"%d" % number)
    for digest, asked in ((b"0", MAX_LOSSES), (b"new", MAX_LOSSES + 1), (b"0", MAX_LOSSES + 1), (b"1", MAX_LOSSES + 2)):
        seen.loss(np.zeros(2, np.float32), digest)
        assert graphs.asked == asked


def test_gradient_is_computed_only_after_the_loss_rose() -> None:
    seen, graphs = view()
    way = update([0.5, 0.5], [0.4, 0.4])
    assert against(way, seen, GATE, BOUNDS, task()) is None
    assert graphs.asked == 2
    assert against(update([0.5, 0.5], [0.6, 0.6]), seen, GATE, BOUNDS, task()) is not None
    assert graphs.asked == 4


@pytest.mark.parametrize(("kind", "trained"), [("regression", 0.5), ("reconstruction", 0.5), ("multilabel", 0.1)])
def test_loss_thresholds_depend_on_the_task_kind(kind: Any, trained: float) -> None:
    learns = TaskSpec(kind, (1,), None, Strata(1), blind=4.0)
    kit = msgspec.structs.replace(KIT, task=learns)
    seen = ExemplarView(kit, Parabola(KIT), Exemplars.of(np.ones((1, 1), np.float32), np.zeros(1, np.int64)))
    assert (seen.trained, seen.advanced, seen.lost) == (4 * trained, 2.0, 8.0)


def test_exemplars_of_another_shape_are_rejected() -> None:
    with pytest.raises(InvalidBlob, match="do not fit a model"):
        ExemplarView(KIT, Parabola(KIT), Exemplars.of(np.zeros((3, 2), np.float32), np.zeros(3, np.int64)))


def test_loss_may_fall_but_not_leap() -> None:
    assert objection([0.5, 0.5], [0.7, 0.7], bounds=TourBounds()) is None  # 0.5 to 0.98
    assert objection([0.5, 0.5], [0.71, 0.71], bounds=TourBounds()) == (
        "the loss on the exemplars went from 0.5 to 1.01, 2.02 times, over the 2 allowed"
    )
    assert objection([0.5, 0.5], [0.1, 0.1]) is None


def test_usual_rise_is_allowed() -> None:
    used_to = TourBounds(usual_rise=3.0)
    assert objection([0.5, 0.5], [1.2, 1.2], bounds=used_to) is None  # 0.5 to 2.88
    assert objection([0.5, 0.5], [1.3, 1.3], bounds=used_to) is not None  # 0.5 to 3.38


def test_similar_devices_get_a_lower_limit_once_model_improves() -> None:
    alike = TourBounds(most_rise=1.15)
    assert objection([0.4, 0.4], [0.42, 0.42], bounds=alike) is None  # 0.32 to 0.353
    assert objection([0.4, 0.4], [0.44, 0.44], bounds=alike) is not None  # 0.32 to 0.387
    assert objection([0.5, 0.5], [0.55, 0.55], bounds=alike) is None  # 0.5 is over half of ln(2)
    assert objection([0.4, 0.4], [0.55, 0.55], bounds=TourBounds(most_rise=5.0)) is None  # 0.32 to 0.605
    assert objection([0.4, 0.4], [0.6, 0.6], bounds=TourBounds(most_rise=5.0)) is not None  # loss_factor is less


def test_small_rise_counts_only_against_the_descent_direction() -> None:
    straight, aside = [0.6, 0.6], [0.5, 0.9]
    assert objection([0.5, 0.5], straight) == (
        "the loss on the exemplars went from 0.5 to 0.72, and the update points against them (cosine -1.00)"
    )
    assert objection([0.5, 0.5], straight, bounds=TourBounds()) is None
    assert objection([0.5, 0.5], straight, bounds=TourBounds(against_factor=1.5, least_cosine=-0.5)) is None
    assert objection([0.5, 0.5], [0.8, 0.4], bounds=TourBounds(against_factor=1.2, least_cosine=-0.5)) is None  # -0.45
    assert objection([0.5, 0.5], aside, gate=Gate(), bounds=TourBounds(against_factor=1.2, least_cosine=-0.8)) is None
    # FedELMY's devices of the parallel form do not start where the model was.
    assert objection([0.5, 0.5], straight, objective=Elmy(start="own")) is None


def test_trained_or_diverged_loss_cannot_leap() -> None:
    blind = math.log(2)
    trained, lost = math.sqrt(0.01 * blind), math.sqrt(2.1 * blind)
    assert (
        objection([trained, 0], [2 * trained, 0], bounds=TourBounds()) is None
    )  # four times the loss, and still trained
    assert objection([lost, 0], [2 * lost, 0], bounds=TourBounds()) is None
    assert objection([0.9 * lost, 0], [1.8 * lost, 0], bounds=TourBounds()) is not None
    assert rise_of(update([trained, 0], [2 * trained, 0]), view()[0]) == pytest.approx(0.4)


def test_update_without_exemplars_is_accepted() -> None:
    assert against(update([1, 1], [9, 9]), None, GATE, BOUNDS, task()) is None


def test_cosine_is_relative_to_steepest_descent() -> None:
    slope = np.array([2.0, 0.0], np.float32)
    assert cosine_to_descent(np.array([-3.0, 0.0]), slope) == 1
    assert cosine_to_descent(np.array([3.0, 3.0]), slope) == pytest.approx(-math.sqrt(0.5))
    assert cosine_to_descent(np.zeros(2), slope) == 0


def test_norm_limit_matches_hand_computation() -> None:
    slope = np.array([3.0, 4.0], np.float32)
    training = Training(lr=0.5, momentum=0.5)
    assert longest_update(Gate(norm_factor=10.0), (0.1, 0.2, 9.0), 4, training, None) == 4.0
    assert longest_update(Gate(norm_factor=10.0), (), 4, training, slope) == 10 * 4 * 0.5 / 0.5 * 5
    assert longest_update(Gate(norm_factor=10.0), (), 4, Training(lr=0.5, optimiser="adam"), slope) == pytest.approx(
        10 * 4 * 0.5 * math.sqrt(2)
    )
    assert longest_update(Gate(norm_factor=10.0), (), 4, training, None) == math.inf
    assert longest_update(Gate(norm_factor=None), (0.1,), 4, training, slope) == math.inf
    assert too_long(4.0, 4.0) is None
    assert too_long(4.1, 4.0) == "the update's norm, 4.1, is over the 4 that its steps allow"
    assert too_long(math.nan, 4.0) is not None


def test_samples_are_capped_for_weight_and_for_steps() -> None:
    free, bounded = TourBounds(), TourBounds(most_samples=1000, usual_samples=10)
    assert (counted_samples(2**50, free), granted_samples(2**50, free)) == (2**50, 2**50)
    assert (counted_samples(2**50, bounded), granted_samples(2**50, bounded)) == (1000, 160)
    assert (counted_samples(70, bounded), granted_samples(70, bounded)) == (70, 70)


class Linear(Graphs):
    """A classifier of two classes: w is the logit of its exemplars' own class, one number for each class."""

    def outputs(self, vector, x):
        own = vector[x[:, 0].astype(int)]
        return np.stack([np.where(x[:, 0] == 0, own, 0), np.where(x[:, 0] == 1, own, 0)], axis=1).astype(np.float32)

    def loss(self, vector, x, y) -> float:
        return float(np.log1p(np.exp(-vector[x[:, 0].astype(int)])).mean())

    def loss_and_gradient(self, vector, x, y, noise=(), reference_models=(), streams=None) -> tuple[float, Any]:
        slope = np.array([-(x[:, 0] == at).mean() / (1 + np.exp(vector[at])) for at in (0, 1)], np.float32)
        return self.loss(vector, x, y), slope


def classes_shown() -> ExemplarView:
    return ExemplarView(KIT, Linear(KIT), Exemplars.of(np.array([[0.0], [1.0]], np.float32), np.array([0, 1])))


def evidence_against(before, after, objective: Any = None, **bounds: Any) -> str | None:
    allowed = TourBounds(against_factor=1.2, most_evidence=0.4, **bounds)
    refusal = against(update(before, after), classes_shown(), GATE, allowed, task(objective=objective or Sgd()))
    return refusal.why if refusal else None


def test_class_tradeoff_of_skewed_data_is_accepted() -> None:
    skewed = [1.0, 1.0], [4.0, -0.4]  # the loss rises from 0.31 to 0.47: class 1 is unlearned, class 0 learned
    assert evidence_against(*skewed) is None
    assert objection([0.5, 0.5], [0.6, 0.6]) is not None  # without classes, the same rise would be refused


def test_false_labels_are_rejected() -> None:
    why = evidence_against([1.0, 1.0], [0.95, -0.2])  # class 1 is taken for class 0, which is not learned any better
    assert why is not None
    assert why.startswith("the loss on the exemplars went from 0.313 to 0.563, and the update looks like false")


def test_high_loss_rise_lowers_the_evidence_threshold() -> None:
    between = [1.5, 1.5], [2.2, 0.0]
    assert evidence_against(*between) is None
    assert evidence_against(*between, most_rise=1.3) is not None


def test_doubled_loss_is_rejected_if_update_opposes_descent() -> None:
    why = evidence_against([1.0, 1.0], [0.9, -2.0])
    assert why is not None
    assert "from 0.313 to 1.23, 3.94 times, and the update points against them (cosine -0.73)" in why


def test_similar_devices_need_no_further_evidence() -> None:
    skewed = [1.0, 1.0], [4.0, -0.4]
    assert evidence_against(*skewed, most_rise=1.5) is None  # not alike: rises of 1.5 are no exception
    why = evidence_against(*skewed, most_rise=1.3)
    assert why is not None
    assert "devices as alike as these stay below 1.3" in why


def test_drift_correction_uses_the_rules_without_classes() -> None:
    why = evidence_against([1.0, 1.0], [0.95, -0.2], Dyn(), least_cosine=-0.5)
    assert why is not None
    assert why.endswith("and the update points against them (cosine -0.74)")


def test_loss_leap_is_rejected_even_for_skewed_data() -> None:
    why = evidence_against([3.0, 3.0], [40.0, -4.0])
    assert why is not None
    assert "over the 10 allowed" in why


def test_confusion_measures_the_moved_probability() -> None:
    even = np.full((2, 2), 0.5)
    assert confusion(even, np.array([[0.9, 0.1], [0.7, 0.3]])) == pytest.approx(0.2 - 0.4 - 0.2)
    assert confusion(even, np.array([[0.5, 0.5], [0.9, 0.1]])) == pytest.approx(0.4 + 0.4)


def test_exemplars_of_one_class_show_no_classes() -> None:
    assert not view()[0].shows_classes
    assert classes_shown().shows_classes
