"""What `sojourn.extras` names is what pyproject.toml installs."""

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from sojourn.extras import MODULES, bringing, install, need
from tests.there import there

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def named(requirement: str) -> str:
    """The package that a requirement names."""
    return there(re.match(r"[\w.-]+", requirement))[0].lower().replace("_", "-")


@pytest.mark.parametrize("extra", MODULES)
def test_every_module_comes_with_a_package_of_its_extra(extra) -> None:
    installed = packages_distributions()
    required = {named(each) for each in EXTRAS[extra]}
    for module in MODULES[extra]:
        found = {name.lower().replace("_", "-") for name in installed.get(module, [])}
        assert found & required or module in {name.replace("-", "_") for name in required}, module


def test_what_is_installed_is_not_missed() -> None:
    need("cloud", "this test")
    assert bringing("ortools.graph") == "cloud"
    assert install("cloud") == "pip install 'sojourn[cloud]'"
