"""The cost of a mandate for a device: processor time of a visit with and without one, and bytes of the packet.

python -m benchmarks.mandate_check [--visits 2000]

An agent's state machine receives visits, in turns with and without operators' keys, without training. Processor time is
that of this process, so other load hardly matters.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.agent import Agent
from edge_agent.mandates import Mandates
from sojourn.node.machine import Received
from sojourn.parts import Sgd, Training
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.mandates import Mandate, sign_mandate
from sojourn.protocol.messages import Cancel, Visit
from sojourn.protocol.signing import Signer
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Offer, Task, VisitId
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from sojourn.protocol.mandates import SignedMandate

EDGE, DEVICE, EPOCH = Address("edge", "hall"), Address("device", "pi-1"), Epoch(1, bytes(8))
TASK = Task("train", Training(), Sgd(), "float32", 1)
KIT, MODEL = ref_of(b"kit"), ref_of(bytes(10_000), "float32")
TURNS = 10


def signed(signer: Signer) -> SignedMandate:
    """Return a mandate like that of a job with ten classes."""
    now = time.time()
    mandate = Mandate(
        fleet="fleet", job="job", serial=1, operator="ann", issued=now, ends=now + 86_400.0, kit=KIT.digest,
        model="mlp", classes=tuple(map(str, range(10))), class_count=10, tasks=(TASK,), rounds=1 << 40, visits=1 << 40,
        returns={"model": 20_000},
    )  # fmt: skip
    return sign_mandate(mandate, signer)


def taken(mandate: SignedMandate | None, keys: dict[str, str], visits: int) -> tuple[list[float], int]:
    """Return the microseconds of each visit that a new agent unpacks and starts, and the bytes of one packet."""
    agent = Agent("pi-1", Offer("", "", "", 1, 0, ("sgd",), ""), mandates=Mandates("fleet", keys))
    found, size = [], 0
    for number in range(visits):
        visit = Visit(VisitId("job", number + 1, 0, 0, (1, 1)), KIT, {"model": MODEL}, TASK, 7, 60.0, 0, mandate)
        data = pack(Packet(number + 1, EPOCH, visit))
        size = len(data)
        begun = time.process_time_ns()
        message = unpack(data, EDGE, DEVICE).message
        agent.handle(Received(EDGE, EPOCH, message), 0.0)  # type: ignore[arg-type]
        found.append((time.process_time_ns() - begun) / 1e3)
        agent.handle(Received(EDGE, EPOCH, Cancel(visit.id)), 0.0)
    return found, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--visits", type=int, default=2000)
    asked = parser.parse_args()
    signer = Signer(Ed25519PrivateKey.generate())
    mandate, keys = signed(signer), {signer.public: "ann"}
    without: list[float] = []
    after: list[float] = []
    first: list[float] = []
    sizes = {}
    for _ in range(TURNS):
        plain, sizes["without"] = taken(None, {}, asked.visits // TURNS)
        guarded, sizes["with"] = taken(mandate, keys, asked.visits // TURNS)
        without += plain
        first.append(guarded[0])
        after += guarded[1:]
    base = statistics.median(without)
    print(f"a visit unpacked and taken, without a mandate: {base:.0f} µs")
    print(f"with one that was verified before: {statistics.median(after):.0f} µs")
    print(f"the first with a mandate, verified and kept: {statistics.median(first):.0f} µs")
    print(f"bytes of the packet: {sizes['without']} without, {sizes['with']} with")


if __name__ == "__main__":
    main()
