"""Encoding, lengths and weighted means of vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import InvalidBlob
from sojourn.model.generator import GeneratorLayout
from sojourn.parts import Echo, Encoding, Generated, Objective
from sojourn.protocol.spec import Kit, ModelSpec, TensorSpec
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import BlobStore, ref_of

# Encodings: float32, float16, or int8 with one scale per tensor. All numbers are little-endian.
#
# int8: one float32 scale for each tensor, then one signed byte for each number; value = scale * byte. Compressed
# results are sent as deltas against the model that the device received.
#
# The state (`sojourn.protocol.spec.ModelSpec`) follows the trained numbers. It is float32 in every encoding, and a
# delta contains it unchanged: a running variance that lost its small digits could become negative.

Vector: TypeAlias = NDArray[np.float32]
BLOCK = 131_072  # numbers: a block stays in the cache, and is enough work for a thread
MIN_BLOCKS = 2  # per core: starting a thread costs about as much as one block
CORES = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
MAX_LOADED = 4  # at most this many lazily loaded vectors are in memory


def encode(vector: NDArray[np.float32], encoding: str, spec: ModelSpec) -> bytes:
    """Encode a vector."""
    if encoding == "float32":
        return bytes(_bytes_of(vector))
    vector, state = vector[: spec.trainable_size], bytes(_bytes_of(vector[spec.trainable_size :]))
    if encoding == "float16":
        limit = float(np.finfo(np.float16).max)
        # Clip large numbers, but keep non-finite ones, so that the gate detects them.
        return np.where(np.isfinite(vector), np.clip(vector, -limit, limit), vector).astype("<f2").tobytes() + state
    scales, whole = [], np.empty(len(vector), np.int8)
    for place in spec.places[: len(spec.trainable_sizes)]:
        piece = vector[place]
        scale = np.float32(np.max(np.abs(piece)) / 127)
        scales.append(scale)
        whole[place] = np.rint(piece / scale).clip(-127, 127) if scale > 0 and np.isfinite(scale) else 0
    return np.array(scales, "<f4").tobytes() + whole.tobytes() + state


def decode(data: bytes, encoding: str, spec: ModelSpec) -> NDArray[np.float32]:
    """Decode a vector; raise InvalidBlob if the length does not fit the spec."""
    sizes, trainable = spec.trainable_sizes, spec.trainable_size
    state = 4 * (spec.size - trainable)
    expected = {"float32": 4 * trainable, "float16": 2 * trainable, "int8": 4 * len(sizes) + trainable}
    if encoding not in expected or len(data) != expected[encoding] + state:
        raise InvalidBlob(f"{len(data)} bytes are not a {encoding} vector of {spec.size} numbers")
    if encoding == "float32":
        return np.frombuffer(data, "<f4").astype(np.float32, copy=False)
    if encoding == "float16":
        numbers = np.frombuffer(data, "<f2", trainable).astype(np.float32)
    else:
        scales = np.frombuffer(data, "<f4", len(sizes))
        whole = np.frombuffer(data, np.int8, trainable, offset=4 * len(sizes))
        numbers = whole.astype(np.float32) * np.repeat(scales.astype(np.float32), sizes)
    if not state:
        return numbers
    return np.concatenate([numbers, np.frombuffer(data, "<f4", offset=len(data) - state).astype(np.float32)])


def difference(after: NDArray[np.float32], before: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """Return a delta: the change of the trained numbers, and the new state."""
    found = after - before
    found[spec.trainable_size :] = after[spec.trainable_size :]
    return found


def apply_delta(before: NDArray[np.float32], delta: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """Return the model after a delta."""
    found = before + delta
    found[spec.trainable_size :] = delta[spec.trainable_size :]
    return found


def padded(trained: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """Extend a vector over the trained numbers to the length of the model, with zeros for the state."""
    return np.concatenate([trained, np.zeros(spec.size - len(trained), np.float32)]) if spec.state else trained


def load(blobs: BlobStore, ref: Ref, spec: ModelSpec) -> NDArray[np.float32]:
    """Load the vector of a reference (for a delta, the `difference`)."""
    return decode(blobs.read(ref.digest), ref.encoding, spec)


def save(
    blobs: BlobStore, vector: NDArray[np.float32], encoding: Encoding, spec: ModelSpec, *, delta: bool = False
) -> Ref:
    """Store a vector and return its reference."""
    data = _bytes_of(vector) if encoding == "float32" else encode(vector, encoding, spec)
    ref = ref_of(data, encoding, delta=delta)
    blobs.put(data, ref.digest)
    return ref


def _bytes_of(vector: NDArray[np.float32]) -> memoryview:
    """Return the float32 bytes, without a copy if the vector is already in wire format."""
    return np.ascontiguousarray(vector, "<f4").data.cast("B")


def weighted_mean(vectors: Iterable[NDArray[np.float32]], weights: Sequence[float]) -> NDArray[np.float32]:
    """Return the weighted mean, summed in the given order in float64, so that it is the same everywhere."""
    return weighted_mean_float64(vectors, weights).astype(np.float32)


def weighted_mean_float64(vectors: Iterable[NDArray[np.float32]], weights: Sequence[float]) -> NDArray[np.float64]:
    """Return the weighted mean in float64; only a few lazily loaded vectors are in memory at a time."""
    total: NDArray[np.float64] | None = None
    share = np.asarray(weights, np.float64) / np.sum(weights, dtype=np.float64)
    coming = zip(vectors, share, strict=True)
    at_once = len(vectors) if isinstance(vectors, Sized) else MAX_LOADED
    while some := list(islice(coming, at_once)):
        if total is None:
            total = np.full(len(some[0][0]), -0.0)  # starting from -0.0 keeps a sum of -0.0
        _add(total, some)
        some.clear()
    if total is None:
        raise ValueError("no vectors to average")
    return total


def blocks(size: int) -> Iterator[slice]:
    """Yield slices of a long vector that fit into the cache."""
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))


def on_all_cores(size: int, work: Callable[[Sequence[slice]], object]) -> None:
    """Run `work` on the blocks of a long vector, divided among the cores; blocks must be independent."""
    cuts = list(blocks(size))
    cores = min(CORES, len(cuts) // MIN_BLOCKS)
    if cores < 2:
        work(cuts)
        return
    shares = [cuts[len(cuts) * core // cores : len(cuts) * (core + 1) // cores] for core in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(work, shares))


def _add(total: NDArray[np.float64], some: Sequence[tuple[NDArray[np.float32], float]]) -> None:
    """Add each vector times its share; every number is summed in the given order."""
    if any(vector.shape != total.shape for vector, _ in some):
        raise ValueError("vectors of different lengths cannot be averaged")

    def add(mine: Sequence[slice]) -> None:
        products = np.empty(min(BLOCK, len(total)))
        for block in mine:
            sums = total[block]
            product = products[: len(sums)]
            for vector, share in some:
                product[:] = vector[block]
                product *= share
                sums += product

    on_all_cores(len(total), add)


MAX_REPORTED_BYTES = 256 << 20
"""Maximum bytes of a vector that a device reports."""


def spec_of_vector(name: str, objective: Objective, kit: Kit) -> ModelSpec:
    """Return the spec of a vector that an objective receives, returns or reports."""
    length = vector_length(name, objective, kit)
    return kit.model if length is None else flat(length)


def vector_length(name: str, objective: Objective, kit: Kit) -> int | None:
    """Return the length of such a vector, or None if it equals the model's."""
    if isinstance(objective, Echo) and name in objective.reports:
        return sum(reported_sizes(objective, kit)) + len(kit.classes)
    if isinstance(objective, Generated) and name in objective.reports:
        return len(kit.classes)
    if isinstance(objective, Generated) and name in objective.receives:
        return GeneratorLayout.of(objective, kit).size
    return None


def reported_sizes(objective: Echo, kit: Kit) -> list[int]:
    """Return how many numbers are reported for each layer: d x d for a full projection, otherwise d per direction."""
    layers = kit.more.taps.layers if kit.more and kit.more.taps else ()
    widths = (layer.inputs for layer in layers[:-1])  # the last layer does not change
    return [width * (min(objective.rank, width) or width) for width in widths]


def flat(length: int) -> ModelSpec:
    """Return the spec of a flat vector that is not a model."""
    return ModelSpec((TensorSpec("", (length,)),))


MIN_WEIGHTS = 2
"""The share limit applies only if equal weights would be at most half of it: three models may be 60, 20 and 20 %."""


def cap_weights(weights: Sequence[float], most: float | None) -> list[float]:
    """Cap each weight at the share `most` of the sum of the results; smaller weights stay exact.

    With fewer than 2 / most positive weights, or with None, all weights are returned unchanged.
    """
    largest = sorted((weight for weight in weights if weight > 0), reverse=True)
    if most is None or len(largest) * most < MIN_WEIGHTS or largest[0] <= most * sum(largest):
        return list(weights)
    for cut in range(1, len(largest)):
        if cut * most >= 1:
            break
        # `cut` weights w, with w = most * (cut * w + the others)
        bound = most * sum(largest[cut:]) / (1 - cut * most)
        if largest[cut] <= bound:
            return [min(weight, bound) for weight in weights]
    return [min(weight, largest[-1]) for weight in weights]
