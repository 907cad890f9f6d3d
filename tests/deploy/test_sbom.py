"""The bills of materials: every version has one for each kind of machine, and it says what is installed there."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

import pytest
from packaging.version import Version

from deploy.lock_file import HERE, INSTALLS, read_lock
from deploy.make_sbom import KINDS, bill, sbom_file
from sojourn import __version__


def newest() -> str:
    versions = {Version(path.name.split("-")[0]) for path in (HERE / "sbom").glob("*.cdx.json")}
    return str(max(versions))


def kept(kind: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(sbom_file(kind, newest()).read_text())
    return made


def test_this_version_has_its_bills() -> None:
    """A later one may have its own already, if what it is made of has changed."""
    assert Version(newest()) >= Version(__version__)
    assert all(sbom_file(kind, newest()).exists() for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bill_has_the_packages_versions_and_hashes_that_are_installed(kind: str) -> None:
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
def test_a_bill_has_what_cyclonedx_asks_for(kind: str) -> None:
    made = kept(kind)
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
    own = made["metadata"]["component"]
    assert (own["type"], own["name"], own["version"]) == ("application", "sojourn", newest())
    for each in made["components"]:
        assert each["type"] == "library"
        assert re.fullmatch(rf"pkg:pypi/{each['name']}@{re.escape(each['version'])}", each["purl"])
        assert each["licenses"], f"{each['name']} says nothing of its licence"
        assert {next(iter(licence)) for licence in each["licenses"]} <= {"license", "expression"}
        for file in each["externalReferences"]:
            assert (file["type"], file["hashes"][0]["alg"]) == ("distribution", "SHA-256")
    refs = [own["bom-ref"], *(each["bom-ref"] for each in made["components"])]
    assert len(set(refs)) == len(refs)
    assert sorted(each["ref"] for each in made["dependencies"]) == sorted(refs)
    assert {ref for each in made["dependencies"] for ref in each["dependsOn"]} == set(refs) - {own["bom-ref"]}


@pytest.mark.parametrize("kind", KINDS)
def test_made_again_it_is_the_same(kind: str) -> None:
    """But for licences, which another build of a package may word otherwise."""
    again, before = bill(kind, newest()), kept(kind)
    for made in (again, before):
        for each in made["components"]:
            del each["licenses"]
    assert again == before
