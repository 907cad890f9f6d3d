"""Fuzzes the inspection with damaged graphs: `python -m tests.sojourn.model.fuzz_inspection [seconds] [seed]`.

Whatever the bytes, it either allows a graph or refuses it with its own error. And what it allows holds no data in other
files, as protobuf itself reads the same bytes.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from sojourn.errors import GraphRefused
from sojourn.model.inspection import _Inspection
from sojourn.model.workload import built_in
from tests.sojourn.model.onnx_made import branches, elsewhere, loop, model, sparse, weights, whole


def seeds() -> list[bytes]:
    """Return real graphs, and some with an attack."""
    crafted = model()
    crafted.graph.sparse_initializer.append(sparse(elsewhere(weights())))
    made = [
        model(),
        model(fixed=[elsewhere(weights())]),
        branches([elsewhere(weights("inner"))]),
        branches([weights("inner")]),
        loop([whole("rounds", 3, scalar=True)]),
        crafted,
    ]
    return [built_in().predict, *(each.SerializeToString() for each in made)]


def damaged(data: bytes, others: list[bytes], draw: random.Random) -> bytes:  # noqa: C901  # a case for each kind
    """Return the bytes with a few changes of the kinds that confuse parsers."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 8))):
        at = draw.randrange(len(out) + 1)
        match draw.randrange(7):
            case 0:  # another bit
                if at < len(out):
                    out[at] ^= 1 << draw.randrange(8)
            case 1:  # another byte, preferably an odd one
                if at < len(out):
                    out[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            case 2:  # a piece less
                del out[at : at + draw.randrange(1, 64)]
            case 3:  # a piece twice
                piece = out[at : at + draw.randrange(1, 64)]
                out[at:at] = piece
            case 4:  # a piece of another graph
                other = draw.choice(others)
                start = draw.randrange(len(other))
                out[at:at] = other[start : start + draw.randrange(1, 200)]
            case 5:  # a number without an end, or a length beyond everything
                out[at:at] = draw.choice((b"\xff" * draw.randrange(1, 12), b"\x3a\xff\xff\xff\xff\x0f"))
            case _:  # the end is missing
                del out[at:]
        if not out:
            return b""
    return bytes(out)


def tensors_in(message: Message) -> Iterator[TensorProto]:
    """Yield every tensor in a message, at any depth, as protobuf parses it."""
    if isinstance(message, TensorProto):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
                yield from tensors_in(each)


def outcome(data: bytes) -> str:
    """Return the result of the inspection; raise AssertionError if it missed an attack."""
    try:
        _Inspection(data).signature()
    except GraphRefused:
        return "refused"
    try:
        seen = ModelProto.FromString(data)
    except DecodeError:
        return "allowed, and refused by protobuf"
    for tensor in tensors_in(seen):
        assert not tensor.external_data
        assert tensor.data_location == TensorProto.DEFAULT
    assert not seen.functions
    assert not seen.graph.sparse_initializer
    return "allowed"


def rounds(seed: int) -> Iterator[bytes]:
    """Yield damaged graphs forever."""
    draw, all_seeds = random.Random(seed), seeds()
    while True:
        yield damaged(draw.choice(all_seeds), all_seeds, draw)


def main(seconds: float = 60.0, seed: int = 0) -> None:
    counted: Counter[str] = Counter()
    slowest, until = 0.0, time.monotonic() + seconds
    for data in rounds(seed):
        began = time.monotonic()
        counted[outcome(data)] += 1
        slowest = max(slowest, time.monotonic() - began)
        if time.monotonic() > until:
            break
    sys.stdout.write(f"{sum(counted.values()):,} graphs, slowest {slowest * 1e3:.1f} ms: {dict(counted)}\n")


if __name__ == "__main__":
    given = sys.argv[1:] + ["60", "0"][len(sys.argv) - 1 :]
    main(float(given[0]), int(given[1]))
