"""Makes docs/vectors.json and the worked examples in docs/protocol.md, from the code that is the protocol.

python -m docs.make_vectors            write both
python -m docs.make_vectors --check    say whether both are current
"""
# ruff: noqa: INP001  # a script beside the page that it serves

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docs.vectors import blobs, invalid_packets, numbers, packets, training
from docs.vectors.examples import with_examples
from docs.vectors.telling import text_of
from sojourn import WIRE

HERE = Path(__file__).parent
VECTORS, PAGE = HERE / "vectors.json", HERE / "protocol.md"


def make() -> dict[str, Any]:
    """All vectors."""
    return {
        "about": "Test vectors; docs/protocol.md says how to read them. Written by docs/make_vectors.py.",
        "wire": WIRE,
        **packets.make(),
        **invalid_packets.make(),
        **blobs.make(),
        **numbers.make(),
        **training.make(),
    }


def main(arguments: list[str]) -> int:
    """Write, or check."""
    made = make()
    page = PAGE.read_text(encoding="utf-8")
    wanted = {VECTORS: text_of(made), PAGE: with_examples(page, made)}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        sys.stdout.writelines(f"{path.name} is not current: run python -m docs.make_vectors\n" for path in stale)
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
