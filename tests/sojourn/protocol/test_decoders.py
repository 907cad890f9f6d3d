"""Several threads decode the first kit of a process at the same time without a crash."""

import subprocess
import sys

from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec
from tests.sojourn.protocol.examples import kit_without_graphs

KIT = kit_without_graphs(ModelSpec((TensorSpec("w", (2,)),)), InputSpec((2,)))
AT_ONCE = """
import sys, threading
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit

data, start, read = bytes.fromhex(sys.argv[1]), threading.Barrier(8), []
sys.setswitchinterval(1e-6)

def go():
    start.wait()
    read.append(unpack_blob(data, Kit))

threads = [threading.Thread(target=go) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert len(read) == 8 and all(kit == read[0] for kit in read)
"""
TIMES = 8
"""Without a lock about every fourth process ended with a segmentation fault."""


def test_threads_decode_the_first_kit_concurrently():
    command = [sys.executable, "-c", AT_ONCE, pack_blob(KIT).hex()]
    ends = [subprocess.run(command, check=False, capture_output=True).returncode for _ in range(TIMES)]
    assert ends == [0] * TIMES
