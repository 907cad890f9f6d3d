"""Nothing that is fetched is run before its checksum was compared: in scripts, and in what the pages tell people."""

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
"""What is asked of this machine is no download."""
NEAR = 6
"""Lines after a download in which its checksum must be compared."""


def unchecked(text: str) -> list[str]:
    """The lines that run, or keep, what nobody has compared with a checksum."""
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
def test_a_download_without_a_checksum_is_seen(line: str) -> None:
    assert unchecked(f"first\n{line}\nlast")


def test_one_with_a_checksum_is_not() -> None:
    assert unchecked('curl --output file https://example.org/x\necho "0abc  file" | sha256sum --check\n') == []
    assert unchecked("ADD --checksum=sha256:0abc https://example.org/x /x") == []


def test_no_script_and_no_page_fetches_what_is_not_checked() -> None:
    assert {ROOT / "README.md", ROOT / "deploy" / "coordinator" / "cloud-init.yaml", ROOT / ".ci" / "run"} <= set(FILES)
    found = {str(path.relative_to(ROOT)): unchecked(path.read_text()) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_fresh_machine_installs_only_the_source_whose_checksum_was_given(tmp_path: Path) -> None:
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
        code, said, complaint = ran(wrong)
        assert (code, said) == (1, "")
        assert "nothing was installed" in complaint
