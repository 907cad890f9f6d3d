"""Write a bill of materials for each kind of machine, as CycloneDX 1.6: `python -m deploy.make_sbom`.

Packages, versions and hashes are those of the requirements files that a machine is installed from. Licences and
dependencies come from the metadata of the installed packages. The same files give the same bytes.
"""
# ruff: noqa: INP001, T201  # a script that prints what it wrote

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deploy.lock_file import HERE, INSTALLS, Pin, read_lock
from deploy.needed import graph, installed
from sojourn import __version__

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("device", "cloud")


def sbom_file(kind: str) -> Path:
    """The file of a kind of machine."""
    return HERE / "sbom" / f"{kind}.cdx.json"


def bill(kind: str) -> dict[str, Any]:
    """All packages on a machine of this kind."""
    pins = read_lock(INSTALLS[kind].file)
    refs = {pin.name: _purl(pin.name, pin.version) for pin in pins}
    sojourn = _purl("sojourn", __version__)
    needs = graph(kind)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "pre-build"}],
            "component": {
                "type": "application",
                "bom-ref": sojourn,
                "name": "sojourn",
                "version": __version__,
                "description": f"Sojourn, as it is on {INSTALLS[kind].about}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "purl": sojourn,
            },
        },
        "components": [_component(pin) for pin in pins],
        "dependencies": [
            {"ref": refs.get(name, sojourn), "dependsOn": sorted(refs[each] for each in needs[name])}
            for name in sorted(needs)
        ],
    }


def _component(pin: Pin) -> dict[str, Any]:
    purl = _purl(pin.name, pin.version)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": pin.name,
        "version": pin.version,
        **_licences(pin.name),
        "purl": purl,
        # A package is several wheels, one for each machine and Python, and exactly one of them is installed.
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"{purl}?file_name={quote(wheel, safe='')}",
                "hashes": [{"alg": "SHA-256", "content": hash_}],
            }
            for wheel, hash_ in sorted(pin.wheels.items())
        ],
    }


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{quote(version, safe='')}"


def _licences(name: str) -> dict[str, Any]:
    """The licence in a package's metadata; empty if there is none."""
    about = installed(name).metadata
    if "License-Expression" in about:
        return {"licenses": [{"expression": about["License-Expression"]}]}
    classifiers = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or () if each[:9] == "License :"]
    names = [each for each in classifiers if each != "OSI Approved"]
    # Some put the whole text of a licence there: that is no name.
    if not names and "License" in about and (text := about["License"].strip()) and "\n" not in text:
        names = [text]
    return {"licenses": [{"license": {"name": each}} for each in names]} if names else {}


def main() -> None:
    """Write both bills."""
    for kind in KINDS:
        path = sbom_file(kind)
        path.write_text(json.dumps(bill(kind), indent=1) + "\n")
        print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    main()
