"""FedELMY's visit compared with its pseudo-code in numpy, which uses the graphs but not `descent`."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edge_agent.training.fedelmy import shuffled
from edge_agent.training.held_out import SampleSubset, parted
from sojourn.model.graphs import Graphs
from sojourn.parts import Elmy, Sgd
from sojourn.randomness import batches, derive, generator
from tests.edge_agent.training.kits import Bench, compiled, visit_for

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

SEED, BATCH, LR, EPOCHS = 11, 8, 0.05, 4
SMALL: dict[str, Any] = {"seed": SEED, "batch": BATCH, "lr": LR, "epochs": EPOCHS}
QUIET: dict[str, Any] = {"models": 2, "alpha": 0.06, "beta": 1.0, "warmup": 2, "validation": 0.2}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Reading:
    """The pseudo-code: one device, its split, and the epochs it chose."""

    def __init__(self, bench: Bench, share: float) -> None:
        self.graphs = Graphs(compiled().kit, 1)
        self.x, self.y = bench.x[:, None].astype(np.float32), bench.y
        order = generator(0, "validation", len(self.y)).permutation(len(self.y))
        held = round(share * len(self.y))
        self.held, self.kept = sorted(order[:held]), np.array(sorted(order[held:]))
        self.chosen: list[int] = []

    def accuracy(self, w: Vector) -> float:
        answers = self.graphs.logits(w, self.x[self.held]).argmax(1)
        return float(np.mean(answers == self.y[self.held]))

    def epochs(self, start: Vector, name: str, count: int, pull: Any) -> list[Vector]:
        """The model after each epoch of plain SGD."""
        w, after, seed = start.copy(), [], derive(SEED, name)
        steps = -(-len(self.kept) // BATCH)
        for number, index in enumerate(batches(seed, len(self.kept), BATCH, count), start=1):
            rows = self.kept[index]
            loss, gradient = self.graphs.loss_and_gradient(w, self.x[rows], self.y[rows])
            w = w - np.float32(LR) * (gradient + pull(w, loss).astype(np.float32))
            if number % steps == 0:
                after.append(w)
        return after

    def grow(self, received: Vector, settings: Elmy, earlier: int = 0) -> Vector:
        first = received
        if settings.warmup and not earlier:
            first = self.epochs(first, "warm-up", settings.warmup, lambda w, _: 0 * w)[-1]
        pool = [first]
        for number in range(1, settings.models + 1):
            middle: Vector = np.asarray(np.mean(pool, axis=0, dtype=np.float64), np.float32)

            def pull(w: Vector, loss: float, middle: Vector = middle) -> Vector:
                d2 = float(np.sum((w - first) ** 2))
                s = min(1.0, 10.0 ** (floor(log10(loss)) - 1 - floor(log10(d2)))) if d2 and loss else 1.0
                return -settings.alpha * s * 2 * (w - middle) + settings.beta * s * 2 * (w - first)

            after = self.epochs(middle, f"model {number}", EPOCHS, pull)
            self.chosen.append(int(np.argmax([self.accuracy(w) for w in after])) if len(self.held) else EPOCHS - 1)
            pool.append(after[self.chosen[-1]])
        return np.asarray(np.mean(pool, axis=0, dtype=np.float64), np.float32)


@pytest.mark.parametrize("earlier", [0, 3])
@pytest.mark.parametrize("change", [{}, {"models": 4, "alpha": 2.0}, {"warmup": 0}, {"validation": 0.0}])
def test_visit_matches_its_pseudo_code(bench: Bench, change: dict[str, Any], earlier: int) -> None:
    settings = Elmy(**(QUIET | change))
    ours = bench.vector(**SMALL, objective=settings, earlier=earlier)
    expected = Reading(bench, settings.validation).grow(compiled().initial, settings, earlier)
    np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_single_model_averages_received_and_best_epoch(bench: Bench) -> None:
    settings = Elmy(models=1, alpha=0.0, beta=0.0, warmup=0, validation=0.2)
    reading = Reading(bench, 0.2)
    after = reading.epochs(compiled().initial, "model 1", 8, lambda w, _: 0 * w)
    scores = [reading.accuracy(w) for w in after]
    assert scores.index(max(scores)) == 3, "the example must be one where neither the first nor the last is best"
    expected = (compiled().initial.astype(np.float64) + after[3]) / 2
    np.testing.assert_allclose(bench.vector(**(SMALL | {"epochs": 8}), objective=settings), expected, atol=1e-6)


def test_earlier_of_equal_epochs_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([3, 5, 5, 4])
    monkeypatch.setattr("edge_agent.training.fedelmy.correct_predictions", lambda *_: next(scores))
    settings = Elmy(models=1, alpha=0.0, beta=0.0, warmup=0, validation=0.2)
    after = Reading(bench, 0.2).epochs(compiled().initial, "model 1", EPOCHS, lambda w, _: 0 * w)
    expected = (compiled().initial.astype(np.float64) + after[1]) / 2
    np.testing.assert_allclose(bench.vector(**SMALL, objective=settings), expected, atol=1e-6)


def test_every_parameter_changes_the_result(bench: Bench) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"models": 3},
        {"alpha": 0.5},
        {"beta": 0.5},
        {"warmup": 3},
        {"warmup": 0},
        {"validation": 0.3},
        {"validation": 0.0},
        {"start": "own"},
        {"start": "own", "warmup": 0},
    ]
    results = [bench.vector(**SMALL, objective=Elmy(**(QUIET | change))).tobytes() for change in changes]
    base = Elmy(**QUIET)
    ways: list[dict[str, Any]] = [{"seed": 12}, {"optimiser": "adam"}, {"momentum": 0.5}, {"lr": 0.06}, {"batch": 9}]
    results += [bench.vector(**(SMALL | how), objective=base).tobytes() for how in ways]
    last = Elmy(**(QUIET | {"validation": 0.0}))  # with a split, the results would not differ
    results += [bench.vector(**(SMALL | {"epochs": 5}), objective=last).tobytes()]
    assert len(set(results)) == len(results)
    assert bench.vector(**SMALL, objective=base).tobytes() == results[0]


def test_later_devices_skip_warm_up_and_own_start(bench: Bench) -> None:
    plain = bench.vector(**SMALL, objective=Elmy(**(QUIET | {"warmup": 0})), earlier=1)
    later = bench.vector(**SMALL, objective=Elmy(**(QUIET | {"start": "own"})), earlier=1)
    assert later.tobytes() == plain.tobytes()
    assert later.tobytes() == bench.vector(**SMALL, objective=Elmy(**(QUIET | {"warmup": 0})), earlier=0).tobytes()
    assert later.tobytes() != bench.vector(**SMALL, objective=Elmy(**QUIET), earlier=0).tobytes()


def test_progress_covers_the_whole_visit(bench: Bench) -> None:
    progress: list[tuple[int, int]] = []
    work = visit_for(bench.blobs, **SMALL, objective=Elmy(**QUIET))
    outcome = bench.trainer.perform(work, lambda step, steps: progress.append((step, steps)))
    total = (2 + 2 * EPOCHS) * 5  # of 50 samples 40 are trained on, 8 at a time
    assert list(dict.fromkeys(progress)) == [(step, total) for step in range(total + 1)]
    assert outcome.metrics["steps"] == total  # type: ignore[union-attr]
    assert set(outcome.metrics) == {"loss_first", "loss", "steps", "seconds"}  # type: ignore[union-attr]


def test_compressed_result_is_a_delta_from_the_received_model(bench: Bench) -> None:
    settings = Elmy(**(QUIET | {"start": "own"}))
    whole = bench.vector(**SMALL, objective=settings)
    ref = bench.train(**SMALL, objective=settings, encoding="float16").vectors["model"]
    np.testing.assert_allclose(bench.load(ref) + compiled().initial, whole, atol=2e-3)


def test_shuffled_start_keeps_the_values_of_each_tensor() -> None:
    spec, model = compiled().kit.model, compiled().initial
    made = shuffled(model, spec, 5)
    for name, tensor in spec.split(made).items():
        before = spec.split(model)[name]
        assert sorted(tensor.reshape(-1)) == sorted(before.reshape(-1))
        assert tensor.tolist() != before.tolist()
    assert made.tolist() != shuffled(model, spec, 6).tolist()
    np.testing.assert_array_equal(made, shuffled(model, spec, 5))


class Numbers:
    """Samples whose values are their indices."""

    def __init__(self, count: int) -> None:
        self.y = np.arange(count)

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[Any, Any]:
        return self.y[index].astype(dtype), self.y[index]


@pytest.mark.parametrize(
    ("count", "share", "held"), [(50, 0.1, 5), (10, 0.1, 1), (5, 0.1, 1), (9, 0.5, 5), (100, 0.33, 33)]
)
def test_split_covers_every_sample_once_and_is_reproducible(count: int, share: float, held: int) -> None:
    parts, again = parted(Numbers(count), share), parted(Numbers(count), share)
    training, out = parts.training, parts.validation
    assert isinstance(training, SampleSubset)
    assert isinstance(out, SampleSubset)
    assert len(out) == held
    assert sorted([*training.y, *out.y]) == list(range(count))
    assert again.validation is not None
    assert out.y.tolist() == again.validation.y.tolist()
    x, y = out.batch(np.array([0]), "float32")
    assert (x[0], y[0]) == (out.y[0], out.y[0])


@pytest.mark.parametrize(("count", "share"), [(50, 0.0), (4, 0.1), (1, 0.5), (3, 0.99)])
def test_no_split_when_one_side_would_be_empty(count: int, share: float) -> None:
    parts = parted(Numbers(count), share)
    assert parts.validation is None
    assert len(parts.training) == count


def test_few_samples_train_without_a_split(tmp_path: Path) -> None:
    few = Bench(tmp_path, samples=3)
    with_share = few.vector(**SMALL, objective=Elmy(**(QUIET | {"validation": 0.1})))
    assert with_share.tobytes() == few.vector(**SMALL, objective=Elmy(**(QUIET | {"validation": 0.0}))).tobytes()
    assert with_share.tobytes() != few.vector(**SMALL, objective=Sgd()).tobytes()
