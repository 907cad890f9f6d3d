"""Each kind of machine has a bill of materials that lists what is installed there."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

import pytest

from deploy.lock_file import INSTALLS, read_lock
from deploy.make_sbom import KINDS, bill, sbom_file
from sojourn import __version__


def kept(kind: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(sbom_file(kind).read_text())
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_bill_lists_installed_packages_versions_and_hashes(kind: str) -> None:
    pins = {(pin.name, pin.version): pin.wheels for pin in read_lock(INSTALLS[kind].file)}
    listed = {
        (each["name"], each["version"]): {
            unquote(file["url"].partition("?file_name=")[2]): file["hashes"][0]["content"]
            for file in each["externalReferences"]
        }
        for each in kept(kind)["components"]
    }
    assert listed == pins


@pytest.mark.parametrize("kind", KINDS)
def test_bill_has_the_fields_cyclonedx_requires(kind: str) -> None:
    made = kept(kind)
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
    own = made["metadata"]["component"]
    assert (own["type"], own["name"], own["version"]) == ("application", "sojourn", __version__)
    for each in made["components"]:
        assert each["type"] == "library"
        assert re.fullmatch(rf"pkg:pypi/{each['name']}@{re.escape(each['version'])}", each["purl"])
        assert each["licenses"], f"{each['name']} has no licence"
        assert {next(iter(licence)) for licence in each["licenses"]} <= {"license", "expression"}
        for file in each["externalReferences"]:
            assert (file["type"], file["hashes"][0]["alg"]) == ("distribution", "SHA-256")
    refs = [own["bom-ref"], *(each["bom-ref"] for each in made["components"])]
    assert len(set(refs)) == len(refs)
    assert sorted(each["ref"] for each in made["dependencies"]) == sorted(refs)
    assert {ref for each in made["dependencies"] for ref in each["dependsOn"]} == set(refs) - {own["bom-ref"]}


@pytest.mark.parametrize("kind", KINDS)
def test_bill_is_reproducible(kind: str) -> None:
    """Licences are left out: another build of a package may word them differently."""
    again, before = bill(kind), kept(kind)
    for made in (again, before):
        for each in made["components"]:
            del each["licenses"]
    assert again == before
