"""`sojourn agent preflight`: each check separately, and all checks with a real broker."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from subprocess import CompletedProcess

import msgspec
import numpy as np
import pytest

from edge_agent.limits import LimitSettings
from edge_agent.settings import AgentSettings
from edge_agent.setup import connection_checks, preflight
from edge_agent.setup.preflight import (
    JobDemands,
    compiled,
    demands_of,
    of_clock,
    of_data,
    of_disk,
    of_kit,
    of_limits,
    of_memory,
    of_service,
    of_training,
)
from edge_agent.setup.training_trial import TrialResult, tried
from edge_agent.training.sandbox import SandboxReport
from sojourn.brokers.acl import Members, acl_lines
from sojourn.brokers.local_broker import start_broker
from sojourn.data.source import DataSettings
from sojourn.errors import ConfigError, MachineError
from sojourn.links.settings import BrokerSettings, LocalBroker, TlsSettings
from sojourn.model.workload import built_in
from sojourn.parts import Training
from sojourn.protocol.data_summary import DataSummary, DataSurvey, SeriesSummary
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import ModelSpec, TableSpec, TensorSpec
from sojourn.protocol.task import Window
from tests import forked
from tests.edge_agent.limits.fake_root import FakeRoot
from tests.sojourn.brokers.brokers import Authority
from tests.waiting import LIMIT

SEEN = DataSurvey(DataSummary(samples=100, classes=("cat", "dog"), class_count=2), (), ("cat", "dog"))
TRIED = TrialResult(SEEN, None, 0.5, 0.01, 80.0, 1000, SandboxReport(("files",)))
FREE = LimitSettings()


def but(**what) -> TrialResult:
    return msgspec.structs.replace(TRIED, **what)


def settings(folder: Path, **what) -> AgentSettings:
    return AgentSettings(name="pi", data=DataSettings(path=str(folder / "data.npz")), store=str(folder), **what)


@pytest.mark.parametrize(
    ("found", "classes", "verdict"),
    [
        (TRIED, (), "ok"),
        (TRIED, ("dog", "cat", "owl"), "ok"),
        (TRIED, ("owl",), "fails"),
        (TRIED, ("dog",), "warning"),
        (but(data=DataSurvey(DataSummary(fault="no such file"))), (), "fails"),
        (but(data=DataSurvey(SEEN.summary, ("skipped: 3 rows",), SEEN.classes)), (), "warning"),
        (but(data=DataSurvey(SEEN.summary, (), ("cat",))), (), "warning"),
    ],
)
def test_data_verdict_depends_on_the_survey_and_job_classes(found, classes, verdict) -> None:
    finding = of_data(found, JobDemands(classes=classes))
    assert finding.verdict == verdict
    assert bool(finding.remedy) == (verdict != "ok")


def test_visit_time_is_start_time_plus_steps() -> None:
    demands = JobDemands(Training(epochs=2, batch=30))  # 4 steps per epoch
    assert of_training(TRIED, demands, FREE)[0].text.startswith("0.6 s for 8 steps")
    assert of_training(TRIED, demands, LimitSettings(cpu_share=0.1))[0].text.startswith("1.3 s for 8 steps")
    (slow, _) = of_training(but(step_seconds=61.0), demands, FREE)
    assert slow.verdict == "fails"
    assert "lease of 60 s" in slow.remedy
    assert of_training(but(training_fault="ImportError: no"), demands, FREE)[0].verdict == "fails"


@pytest.mark.parametrize(
    ("limits", "free", "parameters", "verdict"),
    [
        (FREE, 1000.0, None, "ok"),
        (FREE, None, None, "ok"),
        (FREE, 79.0, None, "fails"),
        (FREE, 100.0, None, "warning"),
        (LimitSettings(memory=79), 1000.0, None, "fails"),
        (LimitSettings(free_memory=64), 143.0, None, "fails"),
        (FREE, 300.0, 50_000_000, "fails"),
    ],
)
def test_memory_verdict_depends_on_limits_and_model_size(limits, free, parameters, verdict) -> None:
    assert of_memory(TRIED, JobDemands(parameters=parameters), limits, free).verdict == verdict


def test_disk_verdict_depends_on_limits_and_model_size(tmp_path) -> None:
    assert of_disk(tmp_path / "new", JobDemands(), FREE).verdict == "ok"
    assert of_disk(tmp_path, JobDemands(), LimitSettings(free_disk=1 << 30)).verdict == "fails"
    assert of_disk(tmp_path, JobDemands(parameters=10**15), FREE).verdict == "fails"


def test_clock_before_the_installation_date_fails(tmp_path) -> None:
    early = connection_checks.installed() - dt.timedelta(days=1)
    finding = of_clock(settings(tmp_path), early)
    assert finding.verdict == "fails"
    assert "before this program was installed" in finding.text
    assert of_clock(settings(tmp_path)).verdict != "fails"


def test_clock_outside_certificate_validity_fails(tmp_path) -> None:
    ca = Authority(tmp_path)
    broker = BrokerSettings(tls=TlsSettings(ca_file=str(ca.file)))
    now, since = dt.datetime.now(tz=dt.UTC), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert connection_checks.fault(broker, now, since) is None
    for years in (-5, 50):
        assert "is valid from" in str(connection_checks.fault(broker, now + dt.timedelta(days=365 * years), since))


def test_unsynchronised_clock_is_a_warning(tmp_path, monkeypatch) -> None:
    for known, verdict in ((True, "ok"), (None, "ok"), (False, "warning")):
        monkeypatch.setattr(connection_checks, "synchronised", lambda known=known: known)
        assert of_clock(settings(tmp_path)).verdict == verdict


def test_limits_are_checked_against_current_readings(tmp_path) -> None:
    root = FakeRoot(tmp_path)
    root.write("sys/class/net/eth0/mtu", "1500")

    def found(**limits) -> list[tuple[str, str]]:
        own = settings(tmp_path, limits=LimitSettings(root=str(root.path), **limits))
        return [(each.what, each.verdict) for each in of_limits(own)]

    assert found() == [("limits", "ok")]
    assert found(stop_at=80) == [("limits", "ok"), ("temperature", "warning")]
    root.heat(75)
    assert found(stop_at=80) == [("limits", "ok")]
    assert found(throttle_at=70, stop_at=80) == found(stop_at=60) == [("limits", "warning")]
    assert found(metered_interfaces=("eth0",)) == [("limits", "ok")]
    assert found(metered_interfaces=("wwan0",)) == [("limits", "ok"), ("metered", "warning")]


def test_missing_service_or_watchdog_is_reported(tmp_path) -> None:
    assert of_service(tmp_path).text == "the agent does not start at boot"
    unit = tmp_path / preflight.UNIT
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nType=simple\n")
    assert of_service(tmp_path).text == "sojourn-agent.service has no watchdog"
    unit.write_text("[Service]\nType=notify\nWatchdogSec=60\n")
    assert of_service(tmp_path).verdict == "ok"


def test_job_file_sets_the_demands() -> None:
    job = {"name": "job", "threads": 2, "training": {"epochs": 3}, "data": {"classes": ["a", 1]}, "tours": {"lease": 5}}
    assert demands_of(job, 7) == JobDemands(Training(epochs=3), 2, ("a", "1"), 5.0, 7)
    assert demands_of({}) == JobDemands()
    with pytest.raises(ConfigError, match=r"job\.toml: .*did you mean 'epochs'"):
        demands_of({"training": {"epoch": 3}}, where="job.toml")


def test_task_can_be_given_by_name() -> None:
    task = demands_of({"model": "net:Net", "task": "regression"}).task
    assert task is not None
    assert task.kind == "regression"


LARGE = ModelSpec((TensorSpec("w", (7000, 7000)),))


def kit_file(folder: Path, **changes) -> Path:
    path = folder / "job.kit"
    path.write_bytes(pack_blob(msgspec.structs.replace(built_in(), **changes)))
    return path


def test_too_large_kit_fails_without_a_trial(tmp_path) -> None:
    root = FakeRoot(tmp_path)
    root.memory(300)
    large = of_kit(kit_file(tmp_path, model=LARGE), JobDemands(), LimitSettings(root=str(root.path)))
    assert large is not None
    assert (large.what, large.verdict) == ("memory", "fails")
    assert "300 MB are available here; the model has 49,000,000 parameters" in large.text
    assert of_kit(kit_file(tmp_path), JobDemands(), LimitSettings(root=str(root.path))) is None
    (tmp_path / "job.kit").write_bytes(b"ONNX")
    with pytest.raises(ConfigError, match="is not a kit: write one with `sojourn job kit`"):
        of_kit(tmp_path / "job.kit", JobDemands(), FREE)


def test_job_kit_is_trained_on_trial(tmp_path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 4)), y=np.arange(20) % 3)
    found = tried(DataSettings(path=str(tmp_path / "data.npz")), 1, 8, seconds=0.05, kit=kit_file(tmp_path))
    assert (found.job_kit, found.parameters, found.training_fault) == (True, 105_866, None)
    time, memory = of_training(found, JobDemands(), FREE)
    assert "steps of the job's model (105,866 parameters)" in time.text
    assert "1 MB of it estimated" in memory.text


def test_job_file_is_compiled_for_the_preflight(tmp_path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 1, 8, 8)), y=np.arange(20) % 3)
    job = tmp_path / "job.toml"
    job.write_text('name = "job"\nmodel = "mlp"\n[data]\ntest = "digits"\n')
    done = run("--name", "pi", "--data", str(tmp_path / "data.npz"), "--job", str(job), "--broker", "127.0.0.1:9")
    assert "steps of the job's model (" in " ".join(done.stdout.split())
    assert "built-in" not in done.stdout
    job.write_text('name = "job"\nmodel = "nowhere:Net"\n[data]\ntest = "digits"\n')
    done = run("--name", "pi", "--data", str(tmp_path / "data.npz"), "--job", str(job), "--broker", "127.0.0.1:9")
    output = " ".join(done.stdout.split())
    assert "not of the job's model, which could not be compiled" in output
    assert "sojourn job kit job.toml" in output


def test_device_without_torch_is_advised_to_get_the_kit(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == "torch" else object())
    finding = compiled(tmp_path / "job.toml", tmp_path)
    assert isinstance(finding, preflight.Finding)
    assert finding.verdict == "warning"
    assert "this device cannot compile it" in finding.text
    assert "--kit" in finding.remedy


def test_job_task_determines_the_data_requirements(tmp_path) -> None:
    assert demands_of({"task": {"kind": "classification"}}).task is None
    task = demands_of({"task": {"kind": "forecast", "targets": ["load"], "steps": 30, "loss": "l1"}}).task
    assert task is not None
    assert (task.kind, task.names, task.window) == ("forecast", ("load",), Window(30, 1))
    for wrong in ({"kind": "sorting"}, {"steps": 0}):
        with pytest.raises(ConfigError):
            demands_of({"task": wrong})
    path = tmp_path / "load.csv"
    path.write_text("day,load\n" + "".join(f"{at % 7},{at % 5}\n" for at in range(20)), encoding="utf-8")
    fault = tried(DataSettings(path=str(path)), 1, 8, seconds=0.01, task=task).data.summary.fault
    assert "has 20 steps, but a window needs 30 input steps and 1" in fault


def test_job_columns_are_used_for_the_data(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("rpm,temp,state\n1,2,ok\n3,4,worn\n", encoding="utf-8")
    where = str(tmp_path / "job.toml")
    table = TableSpec(("rpm", "temp"), "state")
    assert demands_of({"data": {"test": "test.csv"}}, where=where).table == table
    assert demands_of({"data": {"columns": ["rpm", "temp"], "label": "state"}}).table == table
    assert demands_of({"data": {"test": "absent.csv", "label": "last"}}, where=where).table is None
    data = tmp_path / "data.csv"
    data.write_text("state,temp,note,rpm\nok,1,x,2\nworn,3,x,4\n", encoding="utf-8")
    found = tried(DataSettings(path=str(data)), 1, 8, seconds=0.01, table=table).data
    assert (found.summary.shape, found.classes) == ((2,), ("ok", "worn"))
    data.write_text("state,temp,speed\nok,1,2\nworn,3,4\n", encoding="utf-8")
    fault = tried(DataSettings(path=str(data)), 1, 8, seconds=0.01, table=table).data.summary.fault
    assert fault.endswith("the table lacks the column 'rpm'; it has 'state', 'temp', 'speed'")
    bare = demands_of({"data": {"label": "state"}}).table
    data.write_text("state,temp,speed\nok,1,2\nworn,3,4\n", encoding="utf-8")
    assert tried(DataSettings(path=str(data)), 1, 8, seconds=0.01, table=bare).data.classes == ("ok", "worn")


def test_missing_classes_are_ok_for_tasks_without_classes() -> None:
    series = but(data=DataSurvey(DataSummary(samples=9, series=SeriesSummary())))
    assert of_data(series, JobDemands()).verdict == "ok"
    regression = demands_of({"task": {"kind": "regression"}, "data": {"classes": ["a"]}})
    assert of_data(but(data=DataSurvey(SEEN.summary, (), ("cat",))), regression).verdict == "ok"


def test_trial_worker_reports_data_and_training_speed(tmp_path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 4)), y=np.arange(20) % 3, classes=np.array(["a", "b", "c"]))
    found = tried(DataSettings(path=str(tmp_path / "data.npz")), 1, 8, seconds=0.05)
    assert (found.data.summary.samples, found.data.classes, found.training_fault) == (20, ("a", "b", "c"), None)
    assert found.parameters == 105_866
    assert found.start_seconds > 0.01
    assert found.step_seconds > 0
    assert 30 < found.peak < 400
    lacking = tried(DataSettings(path=str(tmp_path / "no.npz")), 1, 8, seconds=0.05).data.summary
    assert "does not exist" in lacking.fault


def test_worker_that_does_not_run_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(MachineError, match="cannot be tried here: no reply: the process ended with exit code 1"):
        tried(DataSettings(path="x.npz"), 1, 8)


@pytest.fixture
def broker(tmp_path):
    acl = acl_lines("sojourn", Members(edges=("edge",), clouds=("cloud",)))
    started = start_broker(LocalBroker(kind="mosquitto", acl=acl, users={"pi": "secret"}), tmp_path / "broker")
    yield started
    started.stop()


def test_broker_refusal_is_reported_with_its_reason(broker, monkeypatch) -> None:
    monkeypatch.setattr(connection_checks, "_CONNECT_TIMEOUT", LIMIT)

    def knock(name="pi", fleet="sojourn", **what) -> str | None:
        return connection_checks.refusal_of(BrokerSettings(host=broker.host, port=broker.port, **what), fleet, name)

    assert knock(password="secret") is None
    assert knock(password="secret", protocol="3.1.1") is None
    assert "refused the connection" in str(knock(password="wrong"))
    assert "refused the connection" in str(knock())
    assert "TLS" in str(knock(password="secret", tls=True))


def run(*arguments: str) -> CompletedProcess[str]:
    return forked.run("agent", "preflight", *arguments)


def test_full_preflight_with_broker_online_and_offline(tmp_path, broker) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 4)), y=np.arange(20) % 3)
    (tmp_path / "word").write_text("secret\n")
    (tmp_path / "agent.toml").write_text(
        f'name = "pi"\nstore = "store"\n[data]\npath = "data.npz"\n[broker]\nhost = "{broker.host}"\n'
        f'port = {broker.port}\npassword_file = "word"\n'
    )
    done = run(str(tmp_path / "agent.toml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 samples of shape 4, float64, values 0 to 0" in done.stdout
    assert "3 classes: 0 (7), 1 (7), 2 (6)" in done.stdout
    assert "warning: all samples are identical" in done.stdout
    assert "accepts pi, without TLS" in done.stdout
    assert "fails" not in done.stdout
    (tmp_path / "word").write_text("wrong\n")
    (tmp_path / "job.toml").write_text('[data]\nclasses = ["cat", "dog"]\n')
    done = run(str(tmp_path / "agent.toml"), "--job", str(tmp_path / "job.toml"))
    assert done.returncode == 1
    assert done.stdout.count("fails") == 2
    assert "none of its classes is a class of the job" in done.stdout
    assert "refused the connection" in done.stdout
    assert not (tmp_path / "store").exists()
