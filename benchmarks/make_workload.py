"""Create sojourn/model/workload.kit: the kit with which `sojourn agent profile` measures a machine.

python -m benchmarks.make_workload

Profiles from an old kit cannot be compared with those from a new one.
"""

from __future__ import annotations

from pathlib import Path

from coordinator.compiling import compile_kit
from coordinator.models import build
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import InputSpec

INPUT = InputSpec((1, 28, 28))
CLASSES = tuple(str(number) for number in range(10))
PLACE = Path(__file__).parents[1] / "sojourn" / "model" / "workload.kit"


def main() -> None:
    """Compile and write."""
    module = build("cnn", INPUT, len(CLASSES), {}, seed=1)
    data = pack_blob(compile_kit(module, INPUT, CLASSES, mean=None, std=None, seed=1).kit)
    PLACE.write_bytes(data)
    print(f"{PLACE.name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
