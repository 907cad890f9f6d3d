"""The extras in `sojourn.errors` match pyproject.toml."""

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from sojourn.errors import MODULES, extra_of, install, require_extra
from tests.there import there

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def named(requirement: str) -> str:
    """Return the package name of a requirement."""
    return there(re.match(r"[\w.-]+", requirement))[0].lower().replace("_", "-")


@pytest.mark.parametrize("extra", MODULES)
def test_every_module_comes_with_a_package_of_its_extra(extra) -> None:
    installed = packages_distributions()
    required = {named(each) for each in EXTRAS[extra]}
    for module in MODULES[extra]:
        found = {name.lower().replace("_", "-") for name in installed.get(module, [])}
        assert found & required or module in {name.replace("-", "_") for name in required}, module


def test_installed_extra_passes_and_install_command_is_given() -> None:
    require_extra("cloud", "this test")
    assert extra_of("ortools.graph") == "cloud"
    assert install("cloud") == "install the extra 'cloud' from a clone of Sojourn: pip install '.[cloud]'"
