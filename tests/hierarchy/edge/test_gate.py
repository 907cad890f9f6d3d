"""The gate's checks: results rejected without a fetch, sums over a tour, and the merge of a wave."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from hierarchy.edge.gate import Check, Failed, Passed, Wrap, Wrapped, perform, unfit
from hierarchy.edge.merge import Merged, WaveMerge
from sojourn.errors import InvalidBlob
from sojourn.model import vectors
from sojourn.model.exemplar_view import ExemplarViews
from sojourn.model.exemplars import Exemplars
from sojourn.model.gate_rules import by_rule, damaged
from sojourn.model.graphs import Graphs
from sojourn.parts import Dyn, Gate, Scaffold, Sgd, TourBounds
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec
from sojourn.protocol.wire import Ref, Task
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.sojourn.protocol.examples import TASK, kit_without_graphs

SPEC = ModelSpec((TensorSpec("w", (2,)), TensorSpec("b", (1,))))
KIT = kit_without_graphs(SPEC, InputSpec((2,)))
START = np.array([1, 2, 3], np.float32)
END = np.array([1.5, 2, 3], np.float32)


def task(encoding="float32", kind="train", objective=None) -> Task:
    return msgspec.structs.replace(TASK, encoding=encoding, kind=kind, objective=objective or Scaffold())


class Desk:
    """A blob store with helpers for vectors."""

    def __init__(self) -> None:
        self.blobs = MemoryBlobs()
        data = pack_blob(KIT)
        self.kit = ref_of(data)
        self.blobs.put(data, self.kit.digest)

    def save(self, values, encoding="float32", *, delta=False) -> Ref:
        return vectors.save(self.blobs, np.asarray(values, np.float32), encoding, SPEC, delta=delta)

    def load(self, ref: Ref) -> np.ndarray:
        return vectors.load(self.blobs, ref, SPEC)

    def check(self, result: dict[str, Ref], checkpoint: dict[str, Ref], of: Task):
        return perform(Check(self.kit, result, checkpoint, None, Gate(), (), of), self.blobs)


def test_extra_vectors_are_summed_over_the_tour() -> None:
    desk = Desk()
    big, small = [2**24, 0.1, -1], [1, 0.2, 1]
    checkpoint = {"model": desk.save(START)}
    first = desk.check({"model": desk.save(END), "control_delta": desk.save(big)}, checkpoint, task())
    assert isinstance(first, Passed)
    assert first.vectors == {"model": desk.save(END), "control_delta": desk.save(big)}
    assert first.wire_vectors == {"model": desk.save(END)}
    second = desk.check({"model": desk.save(START), "control_delta": desk.save(small)}, first.vectors, task())
    assert isinstance(second, Passed)
    assert second.wire_vectors == {"model": desk.save(START)}
    wanted = [
        np.float32(np.float64(np.float32(a)) + np.float64(np.float32(b))) for a, b in zip(big, small, strict=True)
    ]
    assert desk.load(second.vectors["control_delta"]).tolist() == [float(each) for each in wanted]
    assert second.vectors["control_delta"].encoding == "float32"
    assert not second.vectors["control_delta"].delta


@pytest.mark.parametrize("encoding", ["float16", "int8"])
def test_sums_are_exact_whatever_the_model_encoding(encoding) -> None:
    desk = Desk()
    extra = [0.1, 0.2, 0.3]
    result = {"model": desk.save(END - START, encoding, delta=True), "control_delta": desk.save(extra)}
    assert unfit(result, task(encoding), desk.save(START, encoding)) is None
    passed = desk.check(result, {"model": desk.save(START), "control_delta": desk.save(extra)}, task(encoding))
    assert isinstance(passed, Passed)
    assert passed.wire_vectors.keys() == {"model"}
    assert passed.wire_vectors["model"].encoding == encoding
    assert desk.load(passed.vectors["control_delta"]).tolist() == [float(2 * np.float32(each)) for each in extra]
    wrapped = perform(Wrap(desk.kit, desk.save(START, encoding), passed.vectors, task(encoding)), desk.blobs)
    assert isinstance(wrapped, Wrapped)
    assert wrapped.vectors["model"].delta
    assert wrapped.vectors["control_delta"] == passed.vectors["control_delta"]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (None, "the vector 'control_delta' was not returned"),
        ([np.nan, 0, np.inf], "2 of 3 numbers of 'control_delta' are not finite"),
        ([3e38, 0, 0], "1 of 3 numbers of 'control_delta' are not finite"),
    ],
)
def test_missing_or_invalid_extra_vector_fails_the_gate(extra, words) -> None:
    desk = Desk()
    result = {"model": desk.save(END)} | ({"control_delta": desk.save(extra)} if extra else {})
    failed = desk.check(result, {"model": desk.save(START), "control_delta": desk.save([3e38, 0, 0])}, task())
    assert failed == Failed(str(damaged(words)))


def test_extra_vector_of_another_length_fails_the_gate() -> None:
    desk = Desk()
    short = ref_of(bytes(8), "float32")
    desk.blobs.put(bytes(8), short.digest)
    failed = desk.check({"model": desk.save(END), "control_delta": short}, {"model": desk.save(START)}, task())
    assert isinstance(failed, Failed)
    assert "8 bytes are not a float32 vector of 3 numbers" in failed.reason


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
def test_impossible_extra_vectors_are_not_fetched(encoding) -> None:
    desk = Desk()
    model, of = desk.save(START, encoding), task(encoding)
    whole = Ref(bytes(32), 4 * SPEC.size, "float32")
    most = {"float32": 12, "float16": 12, "int8": 4 * model.size}[encoding]
    good = {"model": model, "control_delta": whole}
    assert unfit(good, of, model) is None
    for change in ({"encoding": "float16"}, {"encoding": "int8"}, {"encoding": "raw"}, {"delta": True}):
        spoiled = good | {"control_delta": msgspec.structs.replace(whole, **change)}
        assert unfit(spoiled, of, model) == "'control_delta' is not a whole vector in float32"
    large = good | {"control_delta": msgspec.structs.replace(whole, size=most + 1)}
    assert unfit(large, of, model) == f"'control_delta' is {most + 1} bytes, more than the {most} that fit this model"
    assert "unexpected vector" in str(unfit(good | {"control": whole}, of, model))


def test_estimate_needs_no_extra_vectors() -> None:
    desk = Desk()
    of, model = task(kind="estimate"), desk.save(START)
    assert desk.check({}, {"model": model}, of) == Passed({}, {}, 0.0)
    passed = desk.check({"model": desk.save(END)}, {"model": model}, of)
    assert passed == Passed({"model": desk.save(END)}, {"model": desk.save(END)}, 0.5)
    assert "unexpected vector" in str(unfit({"control_delta": model}, of, model))


MODELS = ([0.1, 1, -3], [0.2, 1, 7], [0.7, 1, 1e-3])


def test_merge_is_the_mean_in_hop_order() -> None:
    desk = Desk()
    weights = (30.0, 50.0, 20.0)
    merged = perform(WaveMerge(desk.kit, tuple(desk.save(it) for it in MODELS), weights, task()), desk.blobs)
    assert isinstance(merged, Merged)
    total = np.zeros(3)
    for model, weight in zip(MODELS, weights, strict=True):
        total += np.array(model, np.float32).astype(np.float64) * (weight / 100.0)
    assert desk.load(merged.vectors["model"]).tolist() == total.astype(np.float32).tolist()
    assert merged.wire_vectors == merged.vectors


def test_merge_is_stored_exact_and_sent_compressed() -> None:
    desk = Desk()
    work = WaveMerge(desk.kit, tuple(desk.save(it) for it in MODELS), (1.0, 1.0, 1.0), task("float16"))
    merged = perform(work, desk.blobs)
    assert isinstance(merged, Merged)
    exact = desk.load(merged.vectors["model"])
    assert merged.vectors["model"].encoding == "float32"
    assert merged.wire_vectors["model"] == desk.save(exact, "float16")
    assert not np.array_equal(desk.load(merged.wire_vectors["model"]), exact)


@pytest.mark.parametrize(("samples", "passes"), [(0, False), (32, False), (96, False), (128, True), (1000, True)])
def test_norm_limit_grows_with_the_step_count(samples, passes) -> None:
    """The update's norm is 0.5 and the usual one 0.025: twice the limit for one step of 32, at the limit for four."""
    desk = Desk()
    result, before = {"model": desk.save(END)}, {"model": desk.save(START)}
    plain = task(objective=Sgd())
    assert (plain.training.epochs, plain.training.batch) == (1, 32)
    done = perform(Check(desk.kit, result, before, None, Gate(), (0.025,), plain, samples), desk.blobs)
    assert isinstance(done, Passed if passes else Failed)


@pytest.mark.parametrize(("samples", "passes"), [(2**50, False), (16 * 8, True)])
def test_claimed_samples_grant_steps_up_to_a_multiple_of_usual(samples, passes) -> None:
    """The norm of 0.5 is at the limit for four batches of 32; 16 times the usual samples are one batch, or four."""
    desk = Desk()
    usual = 2 if not passes else 8
    work = Check(
        desk.kit, {"model": desk.save(END)}, {"model": desk.save(START)}, None, Gate(), (0.025,),
        task(objective=Sgd()), samples, bounds=TourBounds(usual_samples=usual),
    )  # fmt: skip
    assert isinstance(perform(work, desk.blobs), Passed if passes else Failed)


class Looking(Desk):
    """Exemplars on which the loss is the squared distance to the model (1, 2, 2)."""

    def __init__(self) -> None:
        super().__init__()
        shown = pack_blob(Exemplars.of(np.ones((1, 2), np.float32), np.zeros(1, np.int64)))
        self.exemplars = ref_of(shown)
        self.blobs.put(shown, self.exemplars.digest)
        self.views = ExemplarViews(Distance)

    def judge(self, end, norms=(), clip=True, objective=None, report=False, **changes):
        of = task(objective=objective or Sgd())
        bounds = TourBounds(against_factor=1.2, least_cosine=-0.5, clip=clip, report=report)
        checkpoint, result = {"model": self.save(START)}, {"model": self.save(end)}
        gate = Gate(norm_factor=10.0, loss_factor=2.0)
        work = Check(self.kit, result, checkpoint, self.exemplars, gate, norms, of, 32, bounds=bounds)
        return perform(msgspec.structs.replace(work, **changes), self.blobs, self.views)


TOO_LONG = Failed(str(by_rule("the update's norm, 2, is over the 0.5 that its steps allow", "norm_factor")), 2.0)


class Distance(Graphs):
    """A loss with a known gradient."""

    def loss(self, vector, x, y) -> float:
        away = vector - np.array([1, 2, 2], np.float32)
        return float(away @ away)

    def loss_and_gradient(self, vector, x, y, noise=(), reference_models=(), streams=None):
        away = vector - np.array([1, 2, 2], np.float32)
        return float(away @ away), (2 * away).astype(np.float32)


def test_overlong_update_is_clipped_to_the_limit() -> None:
    desk = Looking()  # the start is 1 away from the goal, which is in the third number; the step may be 0.5
    done = desk.judge([1, 2, 1], norms=(0.05,))
    assert isinstance(done, Passed)
    assert desk.load(done.vectors["model"]).tolist() == [1, 2, 2.5]
    assert done.norm == pytest.approx(0.5)
    assert done.note == "the update's norm, 2, is over the 0.5 that its steps allow: shortened to that"
    assert done.rise == 0.25
    assert desk.judge([1, 2, 1], norms=(0.05,), clip=False) == TOO_LONG


def test_overlong_update_in_wrong_direction_is_rejected() -> None:
    desk = Looking()
    done = desk.judge([1, 2, 9], norms=(0.05,))
    assert isinstance(done, Failed)
    assert done.reason.startswith(
        "the update's norm, 6, is over the 0.5 that its steps allow: shortened to that, and the loss on the "
        "exemplars went from 1 to 2.25, "
    )
    assert (done.norm, done.rise) == (6.0, 2.25)


@pytest.mark.parametrize("objective", [Dyn(), Scaffold()])
def test_update_is_not_clipped_if_other_vectors_depend_on_it(objective) -> None:
    desk = Looking()
    done = desk.judge([1, 2, 1], norms=(0.05,), objective=objective)
    assert done == TOO_LONG


def test_first_update_is_limited_by_the_exemplar_gradient() -> None:
    desk = Looking()  # a slope of 2 and a rate of 0.05: a step of 0.1, of which ten are allowed
    assert isinstance(desk.judge([1, 2, 2.01]), Passed)
    assert isinstance(desk.judge([1, 2, 1.9], clip=False), Failed)


def test_update_within_all_bounds_passes_unchanged() -> None:
    desk = Looking()
    done = desk.judge([1, 2, 2.5], norms=(0.5,))
    assert done == Passed({"model": desk.save([1, 2, 2.5])}, {"model": desk.save([1, 2, 2.5])}, 0.5, "", 0.25)


def test_non_finite_difference_of_finite_models_is_rejected() -> None:
    desk = Desk()
    most = np.finfo(np.float32).max
    far = {"model": desk.save([most, most, most])}
    done = perform(
        Check(desk.kit, far, {"model": desk.save([-most] * 3)}, None, Gate(), (1.0,), task(objective=Sgd())), desk.blobs
    )
    assert isinstance(done, Failed)
    work = Wrap(desk.kit, desk.save([-most] * 3), far, task("float16", objective=Sgd()))
    with pytest.raises(InvalidBlob, match="3 of 3 numbers of the difference to the start are not finite"):
        perform(work, desk.blobs)


STATEFUL = ModelSpec((*SPEC.tensors, TensorSpec("n.running_mean", (1,)), TensorSpec("n.running_var", (1,))), 2)


def judged(result, encoding="float32", *, delta=False, norms=(0.1,)):
    """Return the gate's verdict on a model with state; the norms allow an update of about one."""
    blobs, of = MemoryBlobs(), task(encoding, objective=Sgd())
    data = pack_blob(msgspec.structs.replace(KIT, model=STATEFUL))
    kit = ref_of(data)
    blobs.put(data, kit.digest)
    start = vectors.save(blobs, np.array([1, 2, 3, 0, 1], np.float32), "float32", STATEFUL)
    ref = vectors.save(blobs, np.asarray(result, np.float32), encoding, STATEFUL, delta=delta)
    work = Check(kit, {"model": ref}, {"model": start}, None, Gate(norm_factor=10.0), norms, of, 1)
    return perform(work, blobs), blobs


def test_state_is_excluded_from_the_norm() -> None:
    passed, _ = judged([1.5, 2, 3, 1e6, 1e9])
    assert isinstance(passed, Passed)
    assert passed.norm == 0.5
    failed, _ = judged([1e6, 2, 3, 0, 1])
    assert isinstance(failed, Failed)
    assert "norm" in failed.reason


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([np.nan, 1], "1 of 2 numbers of the state are not finite"),
        ([0, np.inf], "1 of 2 numbers of the state are not finite"),
        ([0, -1e-30], "1 running variances of the state are negative"),
        ([1e16, 1], "more than the 1e+15"),
    ],
)
def test_impossible_state_is_rejected(state, words) -> None:
    failed, _ = judged([1.5, 2, 3, *state])
    assert isinstance(failed, Failed)
    assert words in failed.reason
    assert isinstance(judged([1.5, 2, 3, -5, 0])[0], Passed)


@pytest.mark.parametrize("encoding", ["float16", "int8"])
def test_state_of_a_difference_is_kept_as_it_is(encoding) -> None:
    passed, blobs = judged([0.5, 0, 0, 0.3, 0.7], encoding, delta=True)
    assert isinstance(passed, Passed)
    for ref in (passed.vectors["model"], passed.wire_vectors["model"]):
        assert vectors.load(blobs, ref, STATEFUL)[3:].tolist() == [np.float32(0.3), np.float32(0.7)]
    data = pack_blob(msgspec.structs.replace(KIT, model=STATEFUL))
    start = vectors.save(blobs, np.array([1, 2, 3, 0, 1], np.float32), "float32", STATEFUL)
    wrapped = perform(Wrap(ref_of(data), start, passed.vectors, task(encoding, objective=Sgd())), blobs)
    assert isinstance(wrapped, Wrapped)
    assert vectors.load(blobs, wrapped.vectors["model"], STATEFUL)[3:].tolist() == [np.float32(0.3), np.float32(0.7)]


def test_report_mode_keeps_and_flags_an_overlong_update() -> None:
    done = Looking().judge([1, 2, 1], norms=(0.05,), clip=False, report=True)
    assert isinstance(done, Passed)
    assert (done.norm, done.note) == (2.0, "")
    assert done.flagged == TOO_LONG.reason


def test_report_mode_keeps_and_flags_a_harmful_update() -> None:
    done = Looking().judge([1, 2, 5], norms=(0.5,), report=True)
    assert isinstance(done, Passed)
    assert done.flagged.startswith("the loss on the exemplars went from 1 to 9, ")
    assert not Looking().judge([1, 2, 2.5], norms=(0.5,), report=True).flagged


def test_report_mode_rejects_a_non_finite_result() -> None:
    assert isinstance(Looking().judge([1, 2, np.nan], norms=(0.5,), report=True), Failed)
