"""Vectors on the wire and their means: float32, float16, int8 with one scale per tensor.

int8: one float32 scale for each tensor, then one signed byte for each number; value = scale * byte.
All numbers are little-endian. Compressed results travel as deltas against the model that the device was handed.

What follows the trained numbers of a vector is state (`sojourn.protocol.spec.ModelSpec`): it is float32 in every
encoding, and in a delta it stands as it is. A running variance that lost its small digits might come out negative.
"""

from __future__ import annotations

import os
from collections.abc import Sized
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import InvalidBlob
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sojourn.parts import Encoding
    from sojourn.protocol.spec import ModelSpec
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

Vector: TypeAlias = NDArray[np.float32]
BLOCK = 131_072  # numbers: sums and products of a block stay near the core, and a thread works a while without others
LEAST_BLOCKS = 2  # for each core: starting a thread costs about as much as one of them
CORES = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
AT_ONCE = 4  # of vectors that are loaded as they come, so many are in memory


def encode(vector: NDArray[np.float32], encoding: str, spec: ModelSpec) -> bytes:
    """The bytes of a vector."""
    if encoding == "float32":
        return bytes(_bytes_of(vector))
    vector, state = vector[: spec.learnt], bytes(_bytes_of(vector[spec.learnt :]))
    if encoding == "float16":
        limit = float(np.finfo(np.float16).max)
        # Large numbers are cut to the largest there is; what is not finite stays so, for the gate to see.
        return np.where(np.isfinite(vector), np.clip(vector, -limit, limit), vector).astype("<f2").tobytes() + state
    scales, whole = [], np.empty(len(vector), np.int8)
    at = 0
    for size in spec.learnt_sizes:
        piece = vector[at : at + size]
        scale = np.float32(np.max(np.abs(piece)) / 127)
        scales.append(scale)
        whole[at : at + size] = np.rint(piece / scale).clip(-127, 127) if scale > 0 and np.isfinite(scale) else 0
        at += size
    return np.array(scales, "<f4").tobytes() + whole.tobytes() + state


def decode(data: bytes, encoding: str, spec: ModelSpec) -> NDArray[np.float32]:
    """The vector in these bytes; a length that does not fit the spec is refused."""
    sizes, learnt = spec.learnt_sizes, spec.learnt
    state = 4 * (spec.size - learnt)
    expected = {"float32": 4 * learnt, "float16": 2 * learnt, "int8": 4 * len(sizes) + learnt}
    if encoding not in expected or len(data) != expected[encoding] + state:
        raise InvalidBlob(f"{len(data)} bytes are not a {encoding} vector of {spec.size} numbers")
    if encoding == "float32":
        return np.frombuffer(data, "<f4").astype(np.float32, copy=False)
    if encoding == "float16":
        numbers = np.frombuffer(data, "<f2", learnt).astype(np.float32)
    else:
        scales = np.frombuffer(data, "<f4", len(sizes))
        whole = np.frombuffer(data, np.int8, learnt, offset=4 * len(sizes))
        numbers = whole.astype(np.float32) * np.repeat(scales.astype(np.float32), sizes)
    if not state:
        return numbers
    return np.concatenate([numbers, np.frombuffer(data, "<f4", offset=len(data) - state).astype(np.float32)])


def difference(after: NDArray[np.float32], before: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """What a delta holds: how far the trained numbers went, and the state as it is now."""
    found = after - before
    found[spec.learnt :] = after[spec.learnt :]
    return found


def moved(before: NDArray[np.float32], delta: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """The model that a delta leads to."""
    found = before + delta
    found[spec.learnt :] = delta[spec.learnt :]
    return found


def padded(learnt: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """A vector that goes with the trained numbers of a model, as long as the whole model: zeros for its state."""
    return np.concatenate([learnt, np.zeros(spec.size - len(learnt), np.float32)]) if spec.state else learnt


def load(blobs: BlobStore, ref: Ref, spec: ModelSpec) -> NDArray[np.float32]:
    """The vector that a reference stands for (of a delta: the `difference`)."""
    return decode(blobs.read(ref.digest), ref.encoding, spec)


def save(
    blobs: BlobStore, vector: NDArray[np.float32], encoding: Encoding, spec: ModelSpec, *, delta: bool = False
) -> Ref:
    """Keep a vector; returns its reference."""
    data = _bytes_of(vector) if encoding == "float32" else encode(vector, encoding, spec)
    ref = ref_of(data, encoding, delta=delta)
    blobs.put(data, ref.digest)
    return ref


def _bytes_of(vector: NDArray[np.float32]) -> memoryview:
    """The numbers as they go over the wire, without a copy where they are so in memory."""
    return np.ascontiguousarray(vector, "<f4").data.cast("B")


def mean(vectors: Iterable[NDArray[np.float32]], weights: Sequence[float]) -> NDArray[np.float32]:
    """The weighted mean, summed in the order given and in float64, so that it is the same everywhere."""
    return wide_mean(vectors, weights).astype(np.float32)


def wide_mean(vectors: Iterable[NDArray[np.float32]], weights: Sequence[float]) -> NDArray[np.float64]:
    """The weighted mean before it is rounded to float32. Of vectors that are loaded as they come, few are in memory."""
    total: NDArray[np.float64] | None = None
    share = np.asarray(weights, np.float64) / np.sum(weights, dtype=np.float64)
    coming = zip(vectors, share, strict=True)
    at_once = len(vectors) if isinstance(vectors, Sized) else AT_ONCE
    while some := list(islice(coming, at_once)):
        if total is None:
            total = np.full(len(some[0][0]), -0.0)  # with -0.0 as the start, a sum of -0.0 stays one
        _add(total, some)
        some.clear()
    if total is None:
        raise ValueError("there is no mean of no vectors")
    return total


def blocks(size: int) -> Iterator[slice]:
    """Slices of a long vector, short enough that what is computed between two of them stays in the cache."""
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))


def on_all_cores(size: int, work: Callable[[Sequence[slice]], object]) -> None:
    """Do something for the blocks of a long vector, some on each core; what comes of a block depends on it alone."""
    cuts = list(blocks(size))
    cores = min(CORES, len(cuts) // LEAST_BLOCKS)
    if cores < 2:
        work(cuts)
        return
    shares = [cuts[len(cuts) * core // cores : len(cuts) * (core + 1) // cores] for core in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(work, shares))


def _add(total: NDArray[np.float64], some: Sequence[tuple[NDArray[np.float32], float]]) -> None:
    """Add each vector times its share; each number is summed in the order given, whatever the blocks."""
    if any(vector.shape != total.shape for vector, _ in some):
        raise ValueError("vectors of different lengths have no mean")

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
