"""The end of the demo: what was learnt goes back to the devices as a signed release."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coordinator.console.rollout_tables import device_table, summary
from coordinator.releases.file import write_release
from coordinator.releases.making import Wanted
from coordinator.releases.orders import orders_for
from sojourn.errors import JobError
from sojourn.protocol.release import HealthRules
from sojourn.protocol.signing import Signer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

    from coordinator.console.operator import Operator
    from coordinator.releases.file import ReleaseFile

LINE = "digits"
STAGES = (0.25, 1.0)
RULES = HealthRules(soak=0.5, patience=60.0)
KEY, PUBLIC = "release.key", "release.pub"
_LOOK = 0.2


def make_key(folder: Path) -> None:
    """The key that signs the release, and its half for the devices."""
    signer = Signer.generate(folder / KEY)
    (folder / PUBLIC).write_text(f"{signer.public}\n", encoding="utf-8")


def ship(operator: Operator, job: str, folder: Path, console: Console, check: Callable[[], None]) -> ReleaseFile:
    """Make a release of the job's model and bring it to all devices, in two stages."""
    console.print("Now the model goes back: a signed release, first to a quarter of the devices, then to all.")
    release = operator.make_release(job, Wanted(LINE, 1))
    write_release(folder / f"{LINE}-1.release", release)
    forward, back = orders_for(release, None, operator.fleet, Signer.load(folder / KEY))
    view = operator.rollout(forward, back, release, STAGES, RULES)
    while view.status in ("running", "rolling-back"):
        check()
        time.sleep(_LOOK)
        view = operator.releases(LINE)[0]
    console.print(device_table(view))
    if view.status != "done":
        raise JobError(f"the release did not reach the fleet: {summary(view)}")
    return release
