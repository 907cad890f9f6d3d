"""Encodings: exact round trips, bounds on what is lost, and that nothing infinite becomes finite."""

from __future__ import annotations

from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sojourn.errors import InvalidBlob
from sojourn.model.vectors import AT_ONCE, BLOCK, decode, difference, encode, load, mean, moved, padded, save, wide_mean
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
def test_halves_survive_float16(vector) -> None:
    wide = vector.astype(np.float32)
    assert np.array_equal(decode(encode(wide, "float16", SPEC), "float16", SPEC), wide)


@settings(deadline=None)
@given(vectors)
def test_int8_errs_by_half_a_step_of_its_tensor(vector) -> None:
    back = decode(encode(vector, "int8", SPEC), "int8", SPEC)
    for name, tensor in SPEC.split(vector).items():
        step = np.float64(np.max(np.abs(tensor))) / 127
        error = np.abs(SPEC.split(back)[name].astype(np.float64) - tensor)
        assert np.all(error <= step * 0.5001 + 1e-37)


@settings(deadline=None)
@given(vectors)
def test_int8_twice_is_int8_once(vector) -> None:
    once = decode(encode(vector, "int8", SPEC), "int8", SPEC)
    np.testing.assert_allclose(decode(encode(once, "int8", SPEC), "int8", SPEC), once, rtol=1e-6, atol=1e-37)


def test_int8_on_the_wire() -> None:
    vector = np.array([1.27, -1.27, 0.64, 0, 0.01, 0.004, 0, 0, 0, 0, 254], np.float32)
    data = encode(vector, "int8", SPEC)
    assert np.frombuffer(data[:12], "<f4").tolist() == [np.float32(np.float32(1.27) / 127), 0.0, 2.0]
    assert np.frombuffer(data[12:], np.int8).tolist() == [127, -127, 64, 0, 1, 0, 0, 0, 0, 0, 127]


def test_large_numbers_are_cut_by_float16() -> None:
    vector = np.full(SPEC.size, 1e9, np.float32)
    assert decode(encode(vector, "float16", SPEC), "float16", SPEC).tolist() == [65504.0] * SPEC.size


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so_for_the_gate_to_see(encoding, bad) -> None:
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
def test_a_length_that_does_not_fit_is_refused(encoding, size) -> None:
    with pytest.raises(InvalidBlob, match="are not a"):
        decode(bytes(size), encoding, SPEC)


def test_saving_and_loading() -> None:
    blobs = MemoryBlobs()
    vector = np.arange(SPEC.size, dtype=np.float32)
    refs = {encoding: save(blobs, vector, encoding, SPEC) for encoding in ("float32", "float16", "int8")}
    assert {encoding: ref.size for encoding, ref in refs.items()} == {"float32": 44, "float16": 22, "int8": 23}
    assert np.array_equal(load(blobs, refs["float32"], SPEC), vector)
    assert len({ref.digest for ref in refs.values()}) == 3
    assert save(blobs, vector, "float32", SPEC, delta=True).delta


def test_means_are_summed_in_order_and_in_float64() -> None:
    parts = [np.array([1e8], np.float32), np.array([1], np.float32), np.array([-1e8], np.float32)]
    assert mean(parts, [1, 1, 1])[0] == pytest.approx(1 / 3, rel=1e-6)
    assert mean([np.array([2], np.float32), np.array([5], np.float32)], [2, 1]).tolist() == [3.0]
    assert mean(parts[:1], [7]).tolist() == [1e8]
    assert mean(parts, [1, 1, 1]).dtype == np.float32
    with pytest.raises(ValueError, match="no vectors"):
        mean([], [])
    with pytest.raises(ValueError, match="shorter"):
        mean(parts, [1, 1])
    with pytest.raises(ValueError, match="different lengths"):
        mean([np.zeros(2, np.float32), np.zeros(3, np.float32)], [1, 1])


def by_whole_vectors(parts, weights):
    share = np.asarray(weights, np.float64) / np.sum(weights, dtype=np.float64)
    total = parts[0] * share[0]
    for part, each in zip(parts[1:], share[1:], strict=True):
        total = total + part * each
    return total


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 17])
@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
def test_means_in_blocks_are_those_of_whole_vectors_to_the_bit(size, count) -> None:
    draw = np.random.default_rng(size + count)
    parts = [draw.standard_normal(size, np.float32) * np.float32(10.0 ** draw.integers(-30, 30)) for _ in range(count)]
    for part in parts:
        part[:1] = -0.0
    weights = draw.random(count).tolist()
    expected = by_whole_vectors(parts, weights)
    assert wide_mean(iter(parts), weights).tobytes() == expected.tobytes()
    assert mean(parts, weights).tobytes() == expected.astype(np.float32).tobytes()


def test_vectors_that_are_loaded_as_they_come_are_not_all_in_memory() -> None:
    seen: list[ref[np.ndarray]] = []
    alive: list[int] = []

    def loaded():
        for _ in range(5 * AT_ONCE):
            vector = np.ones(3, np.float32)
            seen.append(ref(vector))
            alive.append(sum(each() is not None for each in seen))
            yield vector

    assert mean(loaded(), [1.0] * (5 * AT_ONCE)).tolist() == [1.0] * 3
    assert AT_ONCE <= max(alive) <= AT_ONCE + 2


STATEFUL = ModelSpec((*SPEC.tensors, TensorSpec("n.running_mean", (2,)), TensorSpec("n.running_var", (2,))), 2)


def test_state_is_exact_in_every_encoding() -> None:
    vector = (np.arange(1, STATEFUL.size + 1) / 7).astype(np.float32)
    state = vector[STATEFUL.learnt :]
    assert (STATEFUL.learnt, len(state)) == (SPEC.size, 4)
    for encoding in ("float32", "float16", "int8"):
        data = encode(vector, encoding, STATEFUL)
        assert data == encode(vector[: SPEC.size], encoding, SPEC) + state.tobytes()
        back = decode(data, encoding, STATEFUL)
        assert back[STATEFUL.learnt :].tobytes() == state.tobytes()
        assert np.array_equal(back[: SPEC.size], decode(data[: -state.nbytes], encoding, SPEC))
        for wrong in (data[:-4], data + bytes(4), data[: -state.nbytes]):
            with pytest.raises(InvalidBlob, match=f"vector of {STATEFUL.size} numbers"):
                decode(wrong, encoding, STATEFUL)


def test_a_difference_holds_the_state_itself_so_that_no_variance_is_rounded_below_zero() -> None:
    before = np.full(STATEFUL.size, 1e3, np.float32)
    after = np.full(STATEFUL.size, 1e-6, np.float32)
    back = moved(
        before, decode(encode(difference(after, before, STATEFUL), "int8", STATEFUL), "int8", STATEFUL), STATEFUL
    )
    assert back[STATEFUL.learnt :].tobytes() == after[STATEFUL.learnt :].tobytes()
    np.testing.assert_allclose(back[: STATEFUL.learnt], 0, atol=1e-3)
    assert np.array_equal(difference(after[:11], before[:11], SPEC), after[:11] - before[:11])


def test_what_goes_with_the_trained_numbers_is_padded_to_the_models_length() -> None:
    learnt = np.ones(SPEC.size, np.float32)
    assert padded(learnt, STATEFUL).tolist() == [*learnt, 0, 0, 0, 0]
    assert padded(learnt, SPEC) is learnt


def test_which_numbers_of_the_state_are_variances() -> None:
    assert STATEFUL.variances == (slice(SPEC.size + 2, SPEC.size + 4),)
    assert SPEC.variances == ()
