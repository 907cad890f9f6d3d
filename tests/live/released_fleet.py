"""Three agents that serve releases, as processes on a real Mosquitto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.releases.orders import orders_for
from edge_agent.inference.model import Model
from edge_agent.releases.folder import ReleaseFolder
from sojourn.protocol.release import HealthRules
from sojourn.protocol.signing import Signer
from tests.live.live_fleet import FLEET, LiveFleet
from tests.waiting import LIMIT

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.releases.file import ReleaseFile

DEVICES = [f"pi-{number}" for number in range(3)]
SITES = {"edge-1": DEVICES[:2], "edge-2": DEVICES[2:]}
STAGES = (0.05, 0.5, 1.0)
RULES = HealthRules(soak=0.2, timeout=LIMIT, latency=1000.0)
"""On a busy machine a good release may be measured as slow: only the test of a slow one checks latency."""
OVER = ("done", "rolled-back", "halted", "paused")


class ReleasedFleet(LiveFleet):
    """A fleet whose devices serve releases signed with its key."""

    def __init__(self, folder: Path) -> None:
        self.signer = Signer.generate(folder / "release.key")
        (folder / "release.pub").write_text(self.signer.public)
        (folder / "agent.toml").write_text("[release]\nkey_file = 'release.pub'\nreport_seconds = 1\n")
        self._verifying = ("--release-key", str(folder / "release.pub"))
        agents = (str(folder / "agent.toml"),)
        super().__init__(folder, SITES, own_brokers=False, flags=agents, cloud_flags=self._verifying)
        self._asking = self.operator()
        self.wait_for_devices()

    def begin(self, release: ReleaseFile, *, signer: Signer | None = None, rules: HealthRules = RULES) -> None:
        with self.operator() as operator:
            known = next(iter(operator.releases(release.card.line)), None)
            forward, back = orders_for(release, known, FLEET, signer or self.signer)
            operator.rollout(forward, back, release, STAGES, rules, undo=True)

    def restart_coordinator(self, *, verifies: bool) -> None:
        """Kill the coordinator and restart it, with the fleet's public key or without."""
        self.kill("cloud")
        command = [word for word in self.commands["cloud"] if word not in self._verifying]
        self.commands["cloud"] = [*command, *(self._verifying if verifies else ())]
        self.start("cloud")
        self.wait_for_devices()

    def end(self):
        """Return the rollout's view once it is over; each step of a device has the full timeout."""
        while (view := self.view()).status not in OVER:
            known = self._step_of(view)
            self.wait(lambda known=known: self._step_of(self.view()) != known, f"what follows {known}")
        return view

    @staticmethod
    def _step_of(view):
        """Return a rollout's progress: values that never come back, except at its end."""
        return view.status, view.stage, [(it.device, it.serial, it.state) for it in view.devices]

    def view(self):
        """Return the coordinator's current view."""
        return self._asking.releases("digits")[0]

    def roll_out(self, release: ReleaseFile, **how):
        self.begin(release, **how)
        return self.end()

    def store(self, device: str) -> Path:
        return self.folder / "stores" / device

    def current(self) -> set[int | None]:
        """Return the versions that are current on the devices' disks."""
        served = [ReleaseFolder(self.store(device), "digits").current() for device in DEVICES]
        return {it.version if it else None for it in served}

    def all_predict(self, version: int) -> None:
        """Wait until every device predicts with this version from its disk."""
        for device in DEVICES:
            with Model("digits", self.store(device)) as model:
                assert model.version == version, device
                assert model.predict([[0.0] * 64]).shape == (1, 10)

    def stop(self) -> None:
        """End everything."""
        self._asking.__exit__(None, None, None)
        super().stop()
