"""`sojourn job submit --key | sign | withdraw`: what an operator is shown before signing, and what is signed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from coordinator.console import asking
from coordinator.console.job_commands import app, job_text
from coordinator.console.operator import Operator
from coordinator.jobs.settings import read_job
from coordinator.machine.mandate_requests import compilers
from coordinator.rounds.orders import all_tasks
from sojourn.errors import ConfigError, JobError
from sojourn.links.settings import BrokerSettings
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.mandate import SignedMandate, SignedWithdrawal
from sojourn.protocol.mandate_messages import KitTold
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

    def job(self, name: str, since: int = 0, patience: float = 0) -> Any:
        status = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return msgspec.structs.replace(VIEW, job="job", status=status)

    def job_file(self, name: str) -> tuple[str, str]:
        return self.text, "0.6.0"

    def kit(self, name: str) -> tuple[KitTold, bytes]:
        told = KitTold("t", "job", ref_of(self.content), self.scaling, compilers(), self.serial)
        return told, self.content

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
        patch.setattr(asking, "_connection", lambda **_: cloud)
        return CliRunner().invoke(app, [*map(str, words)], input=answer, catch_exceptions=False)


def same(kit: Any) -> Any:
    return kit


def test_submit_waits_for_the_kit_compares_it_shows_and_signs(file: Path, key: Path) -> None:
    cloud = Coordinator("", same)
    done = run(cloud, "submit", file, "--key", key, "--for", "2d", "--site", "hall", "--purpose", "to read")
    assert done.exit_code == 0
    for words in ("compiled here and the same", "epochs in batches of 16", "where    hall", "Sign this?", "is signed"):
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


def test_who_says_no_signs_nothing(file: Path, key: Path) -> None:
    cloud = Coordinator(job_text(file), same)
    done = run(cloud, "sign", "job", "--file", file, "--key", key, answer="n\n")
    assert (done.exit_code, cloud.signed) == (1, [])
    assert "job is not signed" in done.output


def test_a_coordinator_with_another_kit_or_another_file_gets_no_signature(file: Path, key: Path) -> None:
    evil = Coordinator(job_text(file), lambda kit: msgspec.structs.replace(kit, train=kit.train + b"\x00"))
    with pytest.raises(JobError, match="train differ from the coordinator's"):
        run(evil, "sign", "job", "--file", file, "--key", key)
    other = Coordinator(job(training__epochs=50), same)
    with pytest.raises(ConfigError, match="is not the job 'job' that the coordinator has"):
        run(other, "sign", "job", "--file", file, "--key", key)
    assert evil.signed == other.signed == []


def test_trust_is_said_aloud(file: Path, key: Path) -> None:
    evil = Coordinator(job_text(file), lambda kit: msgspec.structs.replace(kit, train=kit.train + b"\x00"))
    done = run(evil, "sign", "job", "--key", key, "--trust-coordinator", "--yes")
    assert "as the coordinator made it, not compared" in done.output
    assert len(evil.signed) == 1


def test_a_number_of_a_time_to_come_is_not_followed(file: Path, key: Path) -> None:
    with pytest.raises(JobError, match="which is of a time to come"):
        run(Coordinator(job_text(file), same, serial=(1 << 53) - 2), "sign", "job", "--key", key, "--yes")


def test_without_a_key_nothing_is_signed(file: Path) -> None:
    with pytest.raises(ConfigError, match="name the key to sign with"):
        run(Coordinator(job_text(file), same), "sign", "job", "--yes")


def test_withdrawing_says_what_a_server_can_do(key: Path) -> None:
    cloud = Coordinator("", same)
    assert run(cloud, "withdraw", "job", "--key", key, answer="n\n").exit_code == 1
    done = run(cloud, "withdraw", "job", "--key", key)
    assert "a server could keep it from them" in done.output
    (signed,) = cloud.signed
    assert isinstance(signed, SignedWithdrawal)
    it = signed.read()
    assert it is not None
    assert (it.job, it.operator) == ("job", "ann")
    assert it.serial == int(1000 * it.issued)
