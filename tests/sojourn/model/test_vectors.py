"""Encodings: exact round trips, bounded loss, and infinite values stay infinite."""

from __future__ import annotations

from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sojourn.errors import InvalidBlob
from sojourn.model.vectors import (
    BLOCK,
    MAX_LOADED,
    apply_delta,
    decode,
    difference,
    encode,
    load,
    padded,
    save,
    weighted_mean,
    weighted_mean_float64,
)
from sojourn.protocol.spec import ModelSpec, TensorSpec
from sojourn.store.memory_blobs import MemoryBlobs

SPEC = ModelSpec((TensorSpec("a", (2, 3)), TensorSpec("b", (4,)), TensorSpec("c", ())))
vectors = arrays(np.float32, SPEC.size, elements=st.floats(-(2.0**100), 2.0**100, width=32))


@settings(deadline=None)
@given(arrays(np.float32, SPEC.size, elements=st.floats(width=32)))
def test_float32_is_exact(vector) -> None:
    assert decode(encode(vector, "float32", SPEC), "float32", SPEC).tobytes() == vector.tobytes()


@settings(deadline=None)
@given(arrays(np.float32, SPEC.size, elements=st.floats(-60_000, 60_000, width=32)))
def test_float16_rounds_to_eleven_bits(vector) -> None:
    back = decode(encode(vector, "float16", SPEC), "float16", SPEC)
    assert np.all(np.abs(back - vector) <= np.maximum(np.abs(vector) * 2**-11, 2**-25))


@settings(deadline=None)
@given(arrays(np.float16, SPEC.size, elements=st.floats(-60_000, 60_000, width=16)))
def test_half_precision_values_survive_float16(vector) -> None:
    wide = vector.astype(np.float32)
    assert np.array_equal(decode(encode(wide, "float16", SPEC), "float16", SPEC), wide)


@settings(deadline=None)
@given(vectors)
def test_int8_error_is_at_most_half_a_step_of_its_tensor(vector) -> None:
    back = decode(encode(vector, "int8", SPEC), "int8", SPEC)
    for name, tensor in SPEC.split(vector).items():
        step = np.float64(np.max(np.abs(tensor))) / 127
        error = np.abs(SPEC.split(back)[name].astype(np.float64) - tensor)
        assert np.all(error <= step * 0.5001 + 1e-37)


@settings(deadline=None)
@given(vectors)
def test_int8_encoding_is_idempotent(vector) -> None:
    once = decode(encode(vector, "int8", SPEC), "int8", SPEC)
    np.testing.assert_allclose(decode(encode(once, "int8", SPEC), "int8", SPEC), once, rtol=1e-6, atol=1e-37)


def test_int8_wire_format_is_scales_then_values() -> None:
    vector = np.array([1.27, -1.27, 0.64, 0, 0.01, 0.004, 0, 0, 0, 0, 254], np.float32)
    data = encode(vector, "int8", SPEC)
    assert np.frombuffer(data[:12], "<f4").tolist() == [np.float32(np.float32(1.27) / 127), 0.0, 2.0]
    assert np.frombuffer(data[12:], np.int8).tolist() == [127, -127, 64, 0, 1, 0, 0, 0, 0, 0, 127]


def test_float16_clips_large_values() -> None:
    vector = np.full(SPEC.size, 1e9, np.float32)
    assert decode(encode(vector, "float16", SPEC), "float16", SPEC).tolist() == [65504.0] * SPEC.size


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_stay_non_finite(encoding, bad) -> None:
    vector = np.ones(SPEC.size, np.float32)
    vector[3] = bad
    with np.errstate(all="ignore"):
        back = decode(encode(vector, encoding, SPEC), encoding, SPEC)
    assert not np.isfinite(back).all()


def test_zeros_stay_zeros() -> None:
    for encoding in ("float32", "float16", "int8"):
        back = decode(encode(np.zeros(SPEC.size, np.float32), encoding, SPEC), encoding, SPEC)
        assert back.tolist() == [0.0] * SPEC.size
        assert back.dtype == np.float32


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8", "raw", "zip"])
@pytest.mark.parametrize("size", [0, 1, 43, 45, 1000])
def test_wrong_length_is_rejected(encoding, size) -> None:
    with pytest.raises(InvalidBlob, match="are not a"):
        decode(bytes(size), encoding, SPEC)


def test_saved_vectors_load_back_with_expected_size() -> None:
    blobs = MemoryBlobs()
    vector = np.arange(SPEC.size, dtype=np.float32)
    refs = {encoding: save(blobs, vector, encoding, SPEC) for encoding in ("float32", "float16", "int8")}
    assert {encoding: ref.size for encoding, ref in refs.items()} == {"float32": 44, "float16": 22, "int8": 23}
    assert np.array_equal(load(blobs, refs["float32"], SPEC), vector)
    assert len({ref.digest for ref in refs.values()}) == 3
    assert save(blobs, vector, "float32", SPEC, delta=True).delta


def test_mean_sums_in_order_and_in_float64() -> None:
    parts = [np.array([1e8], np.float32), np.array([1], np.float32), np.array([-1e8], np.float32)]
    assert weighted_mean(parts, [1, 1, 1])[0] == pytest.approx(1 / 3, rel=1e-6)
    assert weighted_mean([np.array([2], np.float32), np.array([5], np.float32)], [2, 1]).tolist() == [3.0]
    assert weighted_mean(parts[:1], [7]).tolist() == [1e8]
    assert weighted_mean(parts, [1, 1, 1]).dtype == np.float32
    with pytest.raises(ValueError, match="no vectors"):
        weighted_mean([], [])
    with pytest.raises(ValueError, match="shorter"):
        weighted_mean(parts, [1, 1])
    with pytest.raises(ValueError, match="different lengths"):
        weighted_mean([np.zeros(2, np.float32), np.zeros(3, np.float32)], [1, 1])


def by_whole_vectors(parts, weights):
    share = np.asarray(weights, np.float64) / np.sum(weights, dtype=np.float64)
    total = parts[0] * share[0]
    for part, each in zip(parts[1:], share[1:], strict=True):
        total = total + part * each
    return total


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 17])
@pytest.mark.parametrize("count", [1, MAX_LOADED, MAX_LOADED + 1, 3 * MAX_LOADED])
def test_blockwise_mean_is_bit_identical_to_whole_vectors(size, count) -> None:
    draw = np.random.default_rng(size + count)
    parts = [draw.standard_normal(size, np.float32) * np.float32(10.0 ** draw.integers(-30, 30)) for _ in range(count)]
    for part in parts:
        part[:1] = -0.0
    weights = draw.random(count).tolist()
    expected = by_whole_vectors(parts, weights)
    assert weighted_mean_float64(iter(parts), weights).tobytes() == expected.tobytes()
    assert weighted_mean(parts, weights).tobytes() == expected.astype(np.float32).tobytes()


def test_mean_keeps_few_streamed_vectors_in_memory() -> None:
    seen: list[ref[np.ndarray]] = []
    alive: list[int] = []

    def loaded():
        for _ in range(5 * MAX_LOADED):
            vector = np.ones(3, np.float32)
            seen.append(ref(vector))
            alive.append(sum(each() is not None for each in seen))
            yield vector

    assert weighted_mean(loaded(), [1.0] * (5 * MAX_LOADED)).tolist() == [1.0] * 3
    assert MAX_LOADED <= max(alive) <= MAX_LOADED + 2


STATEFUL = ModelSpec((*SPEC.tensors, TensorSpec("n.running_mean", (2,)), TensorSpec("n.running_var", (2,))), 2)


def test_state_is_exact_in_every_encoding() -> None:
    vector = (np.arange(1, STATEFUL.size + 1) / 7).astype(np.float32)
    state = vector[STATEFUL.trainable_size :]
    assert (STATEFUL.trainable_size, len(state)) == (SPEC.size, 4)
    for encoding in ("float32", "float16", "int8"):
        data = encode(vector, encoding, STATEFUL)
        assert data == encode(vector[: SPEC.size], encoding, SPEC) + state.tobytes()
        back = decode(data, encoding, STATEFUL)
        assert back[STATEFUL.trainable_size :].tobytes() == state.tobytes()
        assert np.array_equal(back[: SPEC.size], decode(data[: -state.nbytes], encoding, SPEC))
        for wrong in (data[:-4], data + bytes(4), data[: -state.nbytes]):
            with pytest.raises(InvalidBlob, match=f"vector of {STATEFUL.size} numbers"):
                decode(wrong, encoding, STATEFUL)


def test_difference_keeps_state_exact() -> None:
    before = np.full(STATEFUL.size, 1e3, np.float32)
    after = np.full(STATEFUL.size, 1e-6, np.float32)
    back = apply_delta(
        before, decode(encode(difference(after, before, STATEFUL), "int8", STATEFUL), "int8", STATEFUL), STATEFUL
    )
    assert back[STATEFUL.trainable_size :].tobytes() == after[STATEFUL.trainable_size :].tobytes()
    np.testing.assert_allclose(back[: STATEFUL.trainable_size], 0, atol=1e-3)
    assert np.array_equal(difference(after[:11], before[:11], SPEC), after[:11] - before[:11])


def test_trainable_vector_is_padded_to_model_length() -> None:
    trained = np.ones(SPEC.size, np.float32)
    assert padded(trained, STATEFUL).tolist() == [*trained, 0, 0, 0, 0]
    assert padded(trained, SPEC) is trained


def test_variance_slices_of_the_state_are_known() -> None:
    assert STATEFUL.variances == (slice(SPEC.size + 2, SPEC.size + 4),)
    assert SPEC.variances == ()
