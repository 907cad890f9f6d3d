"""The scripts and files of deploy/, checked without an engine or a machine to run them on."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCRIPTS = [*sorted(DEPLOY.rglob("*.sh")), *sorted((ROOT / "tests" / "deploy").glob("*.sh"))]
DOCKERFILES = sorted(DEPLOY.rglob("Dockerfile"))


def cloud_init() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((DEPLOY / "coordinator" / "cloud-init.yaml").read_text())
    return made


def written(path: str) -> str:
    content: str = next(each["content"] for each in cloud_init()["write_files"] if each["path"] == path)
    return content


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert script.stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("--wrong",), "error: unknown argument: --wrong"),
        (("--bundle",), "error: --bundle needs a value"),
        (("--purge",), "error: --purge goes with --uninstall"),
        (("--uninstall", "--bundle", "x"), "error: --uninstall goes with --purge only"),
        (("--uninstall", "--wheel", "x"), "error: --uninstall goes with --purge only"),
        (("--wheel", "x", "--wheelhouse", "y"), "error: --wheel and --wheelhouse: give one of them"),
    ],
)
def test_install_script_rejects_unknown_arguments(arguments: tuple[str, ...], output: str) -> None:
    script = str(DEPLOY / "device" / "install.sh")
    done = subprocess.run(["sh", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(output)


@pytest.mark.parametrize("script", ["device/install.sh", "install-server.sh"])
def test_upgrade_keeps_packages_added_for_metrics(script: str, tmp_path: Path) -> None:
    text = (DEPLOY / script).read_text()
    loop = re.search(r"^ *for each in .*prometheus_client\*; do\n(?:.*\n){1,2}? *done$", text, re.MULTILINE)
    assert loop is not None
    code = f"prefix={tmp_path} PREFIX={tmp_path} venv={tmp_path}/new\n{loop[0]}"
    new = tmp_path / "new" / "lib" / "python3.12" / "site-packages"
    new.mkdir(parents=True)
    subprocess.run(["sh", "-euc", code], check=True)  # on a machine without anything
    assert list(new.iterdir()) == []
    old = tmp_path / "current" / "lib" / "python3.11" / "site-packages"
    for name in ("prometheus_client", "prometheus_client-0.26.0.dist-info", "another"):
        (old / name).mkdir(parents=True)
        (old / name / "file").touch()
    subprocess.run(["sh", "-euc", code], check=True)
    found = sorted(str(path.relative_to(new)) for path in new.rglob("file"))
    assert found == ["prometheus_client-0.26.0.dist-info/file", "prometheus_client/file"]


def test_cloud_init_file_and_its_script_are_valid(tmp_path: Path) -> None:
    assert (DEPLOY / "coordinator" / "cloud-init.yaml").read_text().startswith("#cloud-config\n")
    made = cloud_init()
    assert {"mosquitto", "python3-venv", "curl"} <= set(made["packages"])
    assert made["runcmd"] == [["/usr/local/sbin/sojourn-setup"]]
    script = tmp_path / "setup"
    script.write_text(written("/usr/local/sbin/sojourn-setup"))
    done = subprocess.run(["shellcheck", "-e", "SC1091", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "/deploy/install-server.sh" in script.read_text()
    env = dict(line.split("=", 1) for line in written("/etc/sojourn/site.env").splitlines() if not line.startswith("#"))
    assert set(env) == {"SOURCE", "SHA256", "HOST", "FLEET"}


def test_compose_starts_broker_after_keys_with_tls_only() -> None:
    made = yaml.safe_load((DEPLOY / "coordinator" / "docker-compose.yml").read_text())
    services = made["services"]
    assert set(services) == {"keys", "broker", "coordinator"}
    assert services["broker"]["depends_on"] == {"keys": {"condition": "service_completed_successfully"}}
    assert services["broker"]["ports"] == ["8884:8884"]
    assert services["coordinator"]["network_mode"] == "service:broker"
    used = {each.partition(":")[0] for service in services.values() for each in service["volumes"]}
    assert used - {"./bundles"} == set(made["volumes"])
    build = made["x-sojourn"]["build"]
    assert (DEPLOY / "coordinator" / build["context"] / build["dockerfile"]).resolve() in DOCKERFILES
    for service in services.values():
        assert service["read_only"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def instructions(file: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", file.read_text())
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, rest in lines]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_dockerfile_copies_existing_files_and_drops_root(file: Path, tmp_path: Path) -> None:
    made = instructions(file)
    words = [word for word, _ in made]
    assert set(words) <= {
        "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    for word, rest in made:
        if word == "FROM":
            assert re.fullmatch(r"\S+:\S+( AS \w+)?", rest), "an image without a version"
            assert not rest.startswith("--platform"), "it would be of one architecture only"
        if word == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / source).exists() for source in rest.split()[:-1])
        if word == "RUN":
            script = tmp_path / "run.sh"
            script.write_text(f"#!/bin/sh\n{rest}\n")
            done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (0, "")
    packages = set(re.findall(r'"(\w+)", "\1\.\*"', (ROOT / "pyproject.toml").read_text()))
    assert packages <= {source for word, rest in made if word == "COPY" for source in rest.split()}
    assert words.index("USER") > len(words) - 1 - words[::-1].index("RUN"), "root after the user was set"
    assert '["sojourn"]' in dict(made)["ENTRYPOINT"]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_dockerfile_installs_like_the_install_script(file: Path) -> None:
    """The steps in the instructions are those that the test in a clean root executes."""
    install = next(rest for word, rest in instructions(file) if word == "RUN")
    steps = [shlex.split(step) for step in install.split("&&")]
    assert steps[0] == ["python", "-m", "venv", "/opt/sojourn"]
    checked = [step for step in steps if "--require-hashes" in step]
    assert [step[-2:] for step in checked] == [["-r", "requirements.txt"], ["-r", "build-requirements.txt"]]
    assert all({"--no-deps", ":all:"} <= set(step) for step in checked)
    (own,) = [step for step in steps if "install" in step and step not in checked]
    assert own[-3:] == ["--no-deps", "--no-build-isolation", "."]
    assert own[0] == f"PYTHONPATH={checked[1][checked[1].index('--target') + 1]}"
    locked = "coordinator" if file.parent.name == "coordinator" else "device"
    assert f"deploy/{locked}/requirements.txt" in file.read_text()
