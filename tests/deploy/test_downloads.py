"""Every download is verified by its checksum before it is used: in scripts, and in the commands on pages."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KINDS = ("*.md", "*.sh", "*.yaml", "*.yml", "*.service", "Dockerfile", "Makefile")
FOLDERS = ("deploy", "docs", "firmware_notes", "benchmarks", "tests/deploy")
FILES = sorted(
    {
        *(path for folder in FOLDERS for kind in KINDS for path in (ROOT / folder).rglob(kind)),
        *(path for kind in KINDS for path in ROOT.glob(kind)),
        *(path for path in (ROOT / ".ci").iterdir() if path.is_file()),
    }
)
INTO_A_SHELL = re.compile(r"\|\s*(sudo\s+)?(-\S+\s+)*(ba|da|z)?sh\b|\b(sh|bash|eval)\b.*(\$\(|<\(|`)\s*(curl|wget)\b")
FETCHES = re.compile(r"(^|[\s`(&;|])(curl|wget)\s+[^`\n]*(https?:|\$)|^\s*ADD\s+https?:|urlretrieve")
CHECKS = re.compile(r"sha256sum --check|sha256sum -c|--checksum=sha256:")
HERE = re.compile(r"(//|\s)localhost[:/]")
"""Requests to this machine are not downloads."""
NEAR = 6
"""The number of lines after a download within which its checksum must be compared."""


def unchecked(text: str) -> list[str]:
    """Return the lines that run or keep a download without a checksum comparison."""
    lines = text.splitlines()
    return [
        line.strip()
        for number, line in enumerate(lines)
        if INTO_A_SHELL.search(line)
        or (
            FETCHES.search(line)
            and not HERE.search(line)
            and not CHECKS.search("\n".join(lines[number : number + NEAR]))
        )
    ]


@pytest.mark.parametrize(
    "line",
    [
        "curl -fsSL https://example.org/install.sh | sh",
        "wget -qO- https://example.org/x | sudo bash",
        "curl https://example.org/x | sudo -E bash -",
        'sh -c "$(curl -fsSL https://example.org/x)"',
        "bash <(curl https://example.org/x)",
        "RUN curl -o x.tar.gz https://example.org/x.tar.gz && tar -xzf x.tar.gz",
        'curl --output file "$SOURCE"',
        "ADD https://example.org/x.tar.gz /x",
    ],
)
def test_download_without_checksum_is_detected(line: str) -> None:
    assert unchecked(f"first\n{line}\nlast")


def test_download_with_checksum_is_accepted() -> None:
    assert unchecked('curl --output file https://example.org/x\necho "0abc  file" | sha256sum --check\n') == []
    assert unchecked("ADD --checksum=sha256:0abc https://example.org/x /x") == []


def test_every_download_in_scripts_and_pages_has_a_checksum() -> None:
    assert {ROOT / "README.md", ROOT / "deploy" / "coordinator" / "cloud-init.yaml", ROOT / ".ci" / "run"} <= set(FILES)
    found = {str(path.relative_to(ROOT)): unchecked(path.read_text()) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_new_machine_installs_only_source_with_given_checksum(tmp_path: Path) -> None:
    made = yaml.safe_load((ROOT / "deploy" / "coordinator" / "cloud-init.yaml").read_text())
    script = next(each["content"] for each in made["write_files"] if each["path"] == "/usr/local/sbin/sojourn-setup")
    (tmp_path / "setup").write_text(script.replace("/etc/sojourn/site.env", str(tmp_path / "site.env")))
    (tmp_path / "install-server.sh").write_text('echo "installing a $1"; exit 3\n')
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "install-server.sh", "sojourn-1/deploy/install-server.sh")

    def ran(sha256: str) -> tuple[int, str, str]:
        (tmp_path / "site.env").write_text(f"SOURCE=file://{tmp_path}/source.tar.gz\nSHA256={sha256}\n")
        done = subprocess.run(["sh", tmp_path / "setup"], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    right = hashlib.sha256((tmp_path / "source.tar.gz").read_bytes()).hexdigest()
    assert ran(right)[:2] == (3, "installing a coordinator\n")
    for wrong in ("", "0" * 64, right[:-1]):
        code, output, complaint = ran(wrong)
        assert (code, output) == (1, "")
        assert "nothing was installed" in complaint
