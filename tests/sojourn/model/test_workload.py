"""The built-in kit, the cost of its training step, and the measured speed."""

from __future__ import annotations

import msgspec
import pytest

from sojourn.errors import MachineError
from sojourn.model import workload
from sojourn.model.graphs import Graphs, check_probe
from sojourn.model.workload import Speed, built_in, counted_cost, measure, ready, speed, training_size

CONV_1 = 2 * 16 * 28 * 28 * 9
CONV_2 = 2 * 32 * 14 * 14 * 16 * 9
LINEAR_1 = 2 * 64 * 32 * 7 * 7
LINEAR_2 = 2 * 10 * 64


def test_built_in_kit_passes_its_probe() -> None:
    kit = built_in()
    assert kit.input.shape == (1, 28, 28)
    assert kit.model.size == 105_866
    assert check_probe(kit, Graphs(kit)) is None
    ready()


def test_probe_mismatch_is_reported(monkeypatch) -> None:
    kit = built_in()
    wrong = msgspec.structs.replace(kit, probe=msgspec.structs.replace(kit.probe, loss=kit.probe.loss + 1))
    monkeypatch.setattr(workload, "built_in", lambda: wrong)
    with pytest.raises(MachineError, match="the probe's loss"):
        ready()


def test_step_cost_is_the_sum_of_its_layers() -> None:
    # Forward, and twice as much backward except for the first layer's input; the window copies of the two poolings are
    # products too: four of 28 rows and columns with 7 to 28 (16 channels: 56), as the compiler writes them.
    layers = 2 * CONV_1 + 3 * CONV_2 + 3 * LINEAR_1 + 3 * LINEAR_2
    unfolding = 2 * 9 * 28 * 28 * 9  # the first layer's weight gradient takes its windows by a convolution
    pooling = 4 * (2 * 224 * 28 * 7) + 4 * (2 * 224 * 56 * 14)
    assert counted_cost(built_in()) == layers + unfolding + pooling


@pytest.mark.parametrize(
    ("operator", "first", "second", "out", "operations"),
    [
        ("Conv", [2, 3, 8, 8], [5, 3, 3, 3], [2, 5, 8, 8], 2 * (2 * 5 * 64) * 27),
        ("Conv", [2, 4, 8, 8], [4, 1, 3, 3], [2, 4, 4, 4], 2 * (2 * 4 * 16) * 9),  # depthwise, stride 2
        ("ConvTranspose", [2, 5, 4, 4], [5, 3, 3, 3], [2, 3, 8, 8], 2 * (2 * 5 * 16) * 27),
        ("Gemm", [6, 7], [7, 4], [6, 4], 2 * 6 * 7 * 4),
        ("Gemm", [7, 6], [4, 7], [6, 4], 2 * 6 * 7 * 4),  # both transposed
        ("MatMul", [9, 6, 7], [9, 7, 4], [9, 6, 4], 2 * 9 * 6 * 7 * 4),
        ("Relu", [6, 7], [6, 7], [6, 7], 0),
    ],
)
def test_operator_costs_match_hand_computation(operator, first, second, out, operations) -> None:
    shapes = [{"float": first}, {"float": second}, {"float": out[1:2]}]
    node = {"op_name": operator, "input_type_shape": shapes, "output_type_shape": [{"float": out}]}
    assert workload._operations(node) == operations


def test_events_without_operator_cost_nothing() -> None:
    assert workload._operations({}) == 0


def test_measured_step_time_is_positive() -> None:
    assert 0 < measure(built_in(), 2, seconds=0.01) < 10


def test_speed_and_step_overhead_are_derived_from_two_batches(monkeypatch) -> None:
    monkeypatch.setattr(workload, "measure", lambda _kit, batch, **_how: 0.005 + batch * 0.002)
    found = speed(1.0, 1)
    assert found.flops == pytest.approx(counted_cost(built_in()) / 0.002)
    assert found.step_seconds == pytest.approx(0.005)


def test_step_overhead_is_never_negative(monkeypatch) -> None:
    monkeypatch.setattr(workload, "measure", lambda _kit, batch, **_how: 0.001 if batch == 1 else 1.0)
    assert speed(1.0, 1) == Speed(pytest.approx(counted_cost(built_in()) / (0.999 / 31)), 0.0)  # type: ignore[arg-type]


def test_busy_machine_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(workload, "measure", lambda _kit, _batch, **_how: 0.01)
    with pytest.raises(MachineError, match="too busy"):
        speed(1.0, 1)


def test_memory_of_a_step_grows_with_its_batch() -> None:
    size = training_size(built_in())
    assert size.parameters == built_in().model.size
    # Copies of the vector and the gradients of layers do not depend on the batch size; activations do.
    assert 4 * size.parameters <= size.fixed <= 16 * size.parameters
    first_layer = 4 * 16 * 28 * 28
    assert first_layer <= size.sample <= 4 * first_layer
    assert size.memory(64, 0) - size.memory(32, 0) == 32 * size.sample
