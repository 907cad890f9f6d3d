"""Blobs, their digests, and the encodings of vectors."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from docs.vectors.cast import END, EXEMPLARS, LARGE, MEMBERS, REPORTS, SPEC, START
from docs.vectors.json_values import to_json
from sojourn.model import vectors
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import InputSpec, Kit, Probe
from sojourn.store.blobs import LEAF, digest_of, leaf_hashes

TINY_KIT = Kit(
    SPEC,
    InputSpec((3,)),
    ("cat", "dog"),
    ((4,),),
    b"train graph",
    b"predict graph",
    Probe(np.arange(6, dtype="<f4").tobytes(), (0, 1), 9, 0.6875, 1.5, (0, 7), (0.25, -0.5)),
    ("weight",),
)
"""An example of a packed kit; its graphs are not valid."""


def make() -> dict[str, Any]:
    """Return the vectors by their keys in vectors.json."""
    return {"blobs": _blobs(), "digests": _digests(), "encodings": _encodings()}


def _blobs() -> list[dict[str, Any]]:
    made: list[tuple[str, object]] = [
        ("kit", TINY_KIT),
        ("exemplars", EXEMPLARS),
        ("members", MEMBERS),
        ("reports", REPORTS),
    ]
    return [
        {"name": name, "fields": to_json(msgpack.unpackb(pack_blob(value))), "hex": pack_blob(value).hex()}
        for name, value in made
    ]


def _digests() -> list[dict[str, Any]]:
    """The content of each is the bytes i mod 251 for i from 0 to size - 1."""
    contents = [LARGE[:size] for size in (0, 1, LEAF, LEAF + 1, len(LARGE))]
    return [
        {
            "size": len(content),
            "leaves": [leaf_hashes(content)[at : at + 32].hex() for at in range(0, len(leaf_hashes(content)), 32)],
            "digest": digest_of(content).hex(),
        }
        for content in contents
    ]


def _encodings() -> list[dict[str, Any]]:
    halves = np.array([127, 0.5, 1.5, -2.5, -127, 126.4, 0.0, 0.0], np.float32)  # ties go to the even number
    extreme = np.array([1e6, -1e6, 1e-8, 3.0, 2.0, -0.1, 1e-45, -1e-45], np.float32)
    broken = np.array([1, np.nan, 2, 3, 4, 1e6, np.inf, 1], np.float32)
    named = {"a model": START, "a difference": END - START, "halves": halves, "extreme": extreme, "not finite": broken}
    made: list[dict[str, Any]] = [
        {
            "name": f"{name}, {encoding}",
            "encoding": encoding,
            "tensors": list(SPEC.sizes),
            "vector": vector.astype("<f4").tobytes().hex(),
            "hex": (data := vectors.encode(vector, encoding, SPEC)).hex(),
            "decoded": vectors.decode(data, encoding, SPEC).astype("<f4").tobytes().hex(),
        }
        for name, vector in named.items()
        for encoding in ("float32", "float16", "int8")
        if (name, encoding) != ("not finite", "int8")
    ]
    data = vectors.encode(broken, "int8", SPEC)
    # The bits of a NaN among the scales depend on the machine.
    unlike = {
        "name": "not finite, int8",
        "encoding": "int8",
        "tensors": list(SPEC.sizes),
        "vector": broken.astype("<f4").tobytes().hex(),
        "hex_after_scales": data[8:].hex(),
        "scales_are_finite": [bool(finite) for finite in np.isfinite(np.frombuffer(data, "<f4", 2))],
    }
    return [*made, unlike]
