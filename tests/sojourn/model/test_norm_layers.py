"""BatchNorm tensors are found by name anywhere in a spec, and no others are."""

from __future__ import annotations

import numpy as np

from sojourn.model.layers import norm_spec, norms_of, with_norms
from sojourn.protocol.spec import ModelSpec, TensorSpec
from tests.edge_agent.training.kits import compiled, compiled_with_state

NAMED = [
    ("a.weight", 3), ("norm.weight", 2), ("norm.bias", 2), ("b.c.weight", 4), ("b.c.bias", 1), ("normal.weight", 2),
    ("norm.running_mean", 2), ("norm.running_var", 2), ("b.c.running_mean", 1), ("b.c.running_var", 1),
    ("other.memory", 3),
]  # fmt: skip
SPEC = ModelSpec(tuple(TensorSpec(name, (size,)) for name, size in NAMED), 5)
OURS = ("norm.weight", "norm.bias", "b.c.weight", "b.c.bias")
STATISTICS = ("norm.running_mean", "norm.running_var", "b.c.running_mean", "b.c.running_var")


def test_norm_spec_covers_all_tensors_of_batchnorm_layers() -> None:
    found = norm_spec(SPEC)
    assert tuple(tensor.name for tensor in found.tensors) == (*OURS, *STATISTICS)
    assert (found.state, found.size, found.trainable_size) == (4, 15, 9)


def test_norm_values_are_extracted_and_restored_in_place() -> None:
    vector, other = np.arange(SPEC.size, dtype=np.float32), np.full(SPEC.size, -1, np.float32)
    made = with_norms(other, norms_of(vector, SPEC), SPEC)
    for name, tensor in SPEC.split(made).items():
        expected = SPEC.split(vector if name in (*OURS, *STATISTICS) else other)[name]
        assert tensor.tolist() == expected.tolist()
    assert (other == -1).all()


def test_compiled_model_yields_only_its_batchnorm_tensors() -> None:
    found = norm_spec(compiled_with_state().kit.model)
    assert sorted(tensor.shape for tensor in found.tensors) == [(4,)] * 4 + [(6,)] * 4
    assert norm_spec(compiled().kit.model).size == 0
    assert len(norms_of(compiled().initial, compiled().kit.model)) == 0
