"""Operators' keys over a real Mosquitto: a signed job trains, an unsigned one does not, and the audit shows both."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from coordinator.console.operator import Operator
from coordinator.console.signing import Terms, give, prepared, withdraw
from sojourn.errors import JobError
from sojourn.protocol.mandates import sign_mandate
from sojourn.protocol.operators import faults
from sojourn.protocol.signing import Signer
from tests.forked import sojourn
from tests.live.live_fleet import FLEET, LiveFleet, compile_here
from tests.waiting import LIMIT

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
name = "signed"
rounds = 1
threads = 1
strategy = "fedavg"
[model]
options = { hidden = [16] }
[data]
test = "digits"
[fleet]
devices = 2
"""


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    ann = Signer.generate(tmp_path / "ann.key")
    (tmp_path / "operators.pub").write_text(f"{ann.public} ann\n")
    (tmp_path / "operators.toml").write_text(f'[operators.operator]\nkey = "{ann.public}"\nrole = "owner"\n')
    return tmp_path / "operators.pub", tmp_path / "operators.toml"


def test_only_signed_jobs_train_and_all_requests_are_logged(tmp_path: Path, keys) -> None:
    public, operators = keys
    fleet = LiveFleet(
        tmp_path,
        {"edge-1": ["pi-1", "pi-2"]},
        own_brokers=False,
        flags=("--mandate-keys", str(public), "--edge", "edge-1"),
        cloud_flags=("--mandate-keys", str(public), "--operators-file", str(operators)),
    )
    signer = Signer.load(tmp_path / "ann.key")
    broker = fleet.brokers["cloud"].settings
    try:
        compile_here(JOB)
        with Operator(broker, fleet=FLEET, cloud="cloud", signer=signer) as ann:
            ann.jobs(timeout=LIMIT)
            ann.submit(JOB)
            fleet.wait(lambda: "waiting for a signature" in ann.job("signed").detail, "the job to wait for ann")
            with (
                Operator(broker, fleet=FLEET, cloud="cloud") as no_site,
                pytest.raises(JobError, match="accepts only signed requests"),
            ):
                no_site.jobs()
            assert fleet.trained() == []
            mandate = prepared(ann, "signed", JOB, Terms("ann", 3600.0), lambda _step: None)
            other = Signer.generate(tmp_path / "eve.key")
            with pytest.raises(JobError, match="not signed with a key of this coordinator"):
                ann.sign(sign_mandate(mandate, other))
            give(ann, mandate, signer)
            fleet.wait(lambda: ann.job("signed").status == "done", "the signed job's end")
            withdraw(ann, "signed", "ann", signer)
            fleet.wait_for("pi-1", "has ended: withdrawn by ann")
            entries = ann.audit()
        assert faults(entries) == []
        assert [(it.who, it.what.split()[0], it.outcome) for it in entries if it.proof] == [
            ("operator", "submit", "done"),
            ("operator", "sign-job", "refused"),
            ("operator", "sign-job", "done"),
            ("operator", "withdraw-job", "done"),
        ]
        store = tmp_path / "stores" / "pi-1"
        (line,) = json.loads(sojourn("agent", "mandates", "--store", str(store), "--json"))
        assert (line["job"], line["by"], line["given"]) == ("signed", "ann", 1)
        assert "withdrawn by ann" in line["state"]
        assert "mandates: required, signed by one of: ann" in fleet.log("pi-1")
        assert "jobs wait until one of these has signed them: ann" in fleet.log("cloud")
        assert mandate.ends > time.time()
    finally:
        fleet.stop()
