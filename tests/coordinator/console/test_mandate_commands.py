"""The commands `sojourn job submit --key | sign | withdraw`: the confirmation, and the signed bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from coordinator.console import options
from coordinator.console.job_commands import app, job_text
from coordinator.console.operator import Operator
from coordinator.jobs.settings import read_job
from coordinator.machine.mandates import compilers
from coordinator.rounds.orders import all_tasks
from sojourn.errors import ConfigError, JobError
from sojourn.links.settings import BrokerSettings
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.mandates import KitDetails, SignedMandate, SignedWithdrawal
from sojourn.protocol.signing import Signer
from sojourn.store.blobs import ref_of
from tests.coordinator.rounds.test_rebuilding import compiled
from tests.fleet_sim.small_fleet import job
from tests.sojourn.protocol.examples import VIEW

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Coordinator(Operator):
    """A connection to a coordinator that has compiled one job, honestly or not."""

    def __init__(self, text: str, change: Callable[[Any], Any], serial: int = 0) -> None:
        super().__init__(BrokerSettings(), fleet="fleet", cloud="cloud", name="ann")
        self.text, self.serial = text, serial
        kit, self.scaling = compiled()
        self.content = pack_blob(change(kit))
        self.signed: list[SignedMandate | SignedWithdrawal] = []
        self.states = ["compiling", "waiting", "waiting"]

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, text: str) -> Any:
        self.text = text
        return self.job("job")

    def job(self, name: str, since: int = 0, timeout: float = 0) -> Any:
        status = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return msgspec.structs.replace(VIEW, job="job", status=status)

    def job_file(self, name: str) -> tuple[str, str]:
        return self.text, "0.6.0"

    def kit(self, name: str) -> tuple[KitDetails, bytes]:
        details = KitDetails("t", "job", ref_of(self.content), self.scaling, compilers(), self.serial)
        return details, self.content

    def sign(self, mandate: SignedMandate) -> Any:
        self.signed.append(mandate)
        return self.job("job")

    def withdraw(self, withdrawal: SignedWithdrawal) -> tuple[Any, ...]:
        self.signed.append(withdrawal)
        return (self.job("job"),)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    Signer.generate(tmp_path / "ann.key")
    return tmp_path / "ann.key"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(job())
    return path


def run(cloud: Coordinator, *words: object, answer: str = "y\n") -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "_connection", lambda **_: cloud)
        return CliRunner().invoke(app, [*map(str, words)], input=answer, catch_exceptions=False)


def same(kit: Any) -> Any:
    return kit


def test_submit_waits_for_kit_verifies_shows_and_signs(file: Path, key: Path) -> None:
    cloud = Coordinator("", same)
    done = run(cloud, "submit", file, "--key", key, "--for", "2d", "--site", "hall", "--purpose", "to read")
    assert done.exit_code == 0
    for words in (
        "identical to the one compiled here",
        "epochs in batches of 16",
        "where    hall",
        "Sign this?",
        "is signed",
    ):
        assert words in done.output
    (signed,) = cloud.signed
    assert isinstance(signed, SignedMandate)
    mandate = signed.read()
    assert mandate is not None
    assert signed.signer([Signer.load(key).public])
    assert (mandate.fleet, mandate.operator, mandate.sites, mandate.purpose) == ("fleet", "ann", ("hall",), "to read")
    assert mandate.ends - mandate.issued == 2 * 86_400.0
    assert mandate.kit == ref_of(cloud.content).digest
    assert len(mandate.tasks) == len(all_tasks_of(file))


def all_tasks_of(file: Path) -> Any:
    return all_tasks(read_job(job_text(file), "job"))


def test_declined_prompt_signs_nothing(file: Path, key: Path) -> None:
    cloud = Coordinator(job_text(file), same)
    done = run(cloud, "sign", "job", "--file", file, "--key", key, answer="n\n")
    assert (done.exit_code, cloud.signed) == (1, [])
    assert "job is not signed" in done.output


def test_different_kit_or_job_file_is_not_signed(file: Path, key: Path) -> None:
    evil = Coordinator(job_text(file), lambda kit: msgspec.structs.replace(kit, train=kit.train + b"\x00"))
    with pytest.raises(JobError, match="train differ from the coordinator's"):
        run(evil, "sign", "job", "--file", file, "--key", key)
    other = Coordinator(job(training__epochs=50), same)
    with pytest.raises(ConfigError, match="is not the job 'job' of the coordinator"):
        run(other, "sign", "job", "--file", file, "--key", key)
    assert evil.signed == other.signed == []


def test_trusting_the_coordinator_is_reported(file: Path, key: Path) -> None:
    evil = Coordinator(job_text(file), lambda kit: msgspec.structs.replace(kit, train=kit.train + b"\x00"))
    done = run(evil, "sign", "job", "--key", key, "--trust-coordinator", "--yes")
    assert "as the coordinator made it, not compared" in done.output
    assert len(evil.signed) == 1


def test_serial_from_the_future_is_rejected(file: Path, key: Path) -> None:
    with pytest.raises(JobError, match="is in the future"):
        run(Coordinator(job_text(file), same, serial=(1 << 53) - 2), "sign", "job", "--key", key, "--yes")


def test_signing_without_a_key_fails(file: Path) -> None:
    with pytest.raises(ConfigError, match="name the key to sign with"):
        run(Coordinator(job_text(file), same), "sign", "job", "--yes")


def test_withdraw_warns_that_a_server_may_withhold_it(key: Path) -> None:
    cloud = Coordinator("", same)
    assert run(cloud, "withdraw", "job", "--key", key, answer="n\n").exit_code == 1
    done = run(cloud, "withdraw", "job", "--key", key)
    assert "a dishonest server could withhold it" in done.output
    (signed,) = cloud.signed
    assert isinstance(signed, SignedWithdrawal)
    it = signed.read()
    assert it is not None
    assert (it.job, it.operator) == ("job", "ann")
    assert it.serial == int(1000 * it.issued)
