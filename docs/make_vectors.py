"""Generate docs/vectors.json and the examples in docs/protocol.md from the code.

python -m docs.make_vectors            write both
python -m docs.make_vectors --check    report whether both are current
"""
# ruff: noqa: INP001  # a script in the folder of its page

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docs.made_pages import write_or_check
from docs.vectors import blobs, invalid_packets, numbers, packets, statements, training
from docs.vectors.examples import with_examples
from docs.vectors.json_values import text_of
from sojourn import WIRE

HERE = Path(__file__).parent
VECTORS, PAGE = HERE / "vectors.json", HERE / "protocol.md"


def make() -> dict[str, Any]:
    """Return all vectors."""
    return {
        "about": "Test vectors; docs/protocol.md describes them. Written by docs/make_vectors.py.",
        "wire": WIRE,
        **packets.make(),
        **invalid_packets.make(),
        **blobs.make(),
        **numbers.make(),
        **training.make(),
        **statements.make(),
    }


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    made = make()
    wanted = {VECTORS: text_of(made), PAGE: with_examples(PAGE.read_text(encoding="utf-8"), made)}
    return write_or_check(wanted, "docs.make_vectors", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
