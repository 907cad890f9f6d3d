"""Writes the files of exact versions and hashes that devices and servers are installed from.

python -m deploy.make_lock INDEX     a simple index (PEP 503), as pip's --index-url takes it

Run it in the environment of constraints.txt (`make install`), which has the versions. The hashes are the index's. The
CPU builds of torch and torchvision are only in PyTorch's own index: their hashes are in
deploy/coordinator/torch-cpu.sha256, which is written by hand, in the form of `sha256sum`.
"""
# ruff: noqa: INP001, T201  # a script that prints what it wrote

from __future__ import annotations

import sys
import urllib.request
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag

from deploy.lock_file import HERE, INSTALLS, MACHINES, PYTHONS, Pin, fits, supported, write_lock
from deploy.needed import needed

_CPU_BUILDS = HERE / "coordinator" / "torch-cpu.sha256"
_DOWNLOAD_TIMEOUT = 60.0


class _Links(HTMLParser):
    """The files of a page of the index, with their hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take a link that ends in a hash."""
        address, end = urldefrag(dict(attrs).get("href") or "")
        if tag == "a" and end.startswith("sha256="):
            self.found[unquote(address.rpartition("/")[2])] = end.removeprefix("sha256=")


def offered(index: str, name: str) -> dict[str, str]:
    """All files of a package that the index has."""
    request = urllib.request.Request(f"{index.rstrip('/')}/{name}/", headers={"Accept": "text/html"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=_DOWNLOAD_TIMEOUT) as page:  # noqa: S310  # the address is the caller's own
        links = _Links()
        links.feed(page.read().decode())
    return links.found


def cpu_builds(name: str) -> dict[str, str]:
    """The CPU builds of torch or torchvision; none of another package."""
    lines = [line.split() for line in _CPU_BUILDS.read_text().splitlines() if not line.startswith("#")]
    return {wheel: hash_ for hash_, wheel in lines if wheel.startswith(f"{name}-")}


def pin(index: str, name: str, version: str) -> Pin:
    """A package with the hashes of its wheels; every target must have one."""
    # The ordinary torch for Linux brings gigabytes of CUDA; torchvision's ordinary build works with either build.
    files = cpu_builds(name) | ({} if name == "torch" else offered(index, name))
    own = {
        wheel: hash_
        for wheel, hash_ in files.items()
        if wheel.endswith(".whl") and wheel.split("-")[1].partition("+")[0] == version
    }
    wheels: dict[str, str] = {}
    for python in PYTHONS:
        for machine in MACHINES:
            tags = supported(python, machine)
            fitting = {wheel: hash_ for wheel, hash_ in own.items() if fits(wheel, tags)}
            if not fitting:
                sys.exit(f"{name} {version}: there is no wheel for Python {python} on {machine}")
            wheels |= fitting
    return Pin(name, version, wheels)


def main(arguments: list[str]) -> int:
    """Write all files."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    (index,) = arguments
    known: dict[str, Pin] = {}
    for kind, install in INSTALLS.items():
        versions = needed(kind)
        known |= {name: pin(index, name, version) for name, version in versions.items() if name not in known}
        install.file.write_text(write_lock(install, [known[name] for name in versions]))
        print(f"{install.file.relative_to(HERE.parent)}: {len(versions)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
