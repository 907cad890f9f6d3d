"""docs/reference.md agrees with the settings, and every example on it is valid in its file."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import pytest

from coordinator.admin.settings import CoordinatorSettings
from coordinator.jobs.settings import JobSettings, read_job
from coordinator.strategies.strategy import FORMS
from docs import make_reference
from edge_agent.settings import AgentSettings
from hierarchy.settings import EdgeSettings
from sojourn.parts import Training
from sojourn.settings import validated

FILES: tuple[type[msgspec.Struct], ...] = (JobSettings, AgentSettings, EdgeSettings, CoordinatorSettings)
TABLES = dict.fromkeys(inner for form in FILES for _, inner in make_reference.tables_of(form))
PARTS = [form for kind in FORMS.values() for name, form in kind.items() if name != "own"]
FORMS_OF_THE_PAGE = [*FILES, *TABLES, Training, *PARTS]
NEEDED: dict[type, dict[str, Any]] = {
    JobSettings: {"name": "first"},
    AgentSettings: {"name": "pi-1", "data": "photos"},
    EdgeSettings: {"name": "edge-1"},
}


def test_page_is_current() -> None:
    assert make_reference.main(["--check"]) == 0


@pytest.mark.parametrize("form", FORMS_OF_THE_PAGE, ids=lambda form: form.__name__)
def test_every_key_has_a_description_and_a_valid_example(form: type[msgspec.Struct]) -> None:
    page = make_reference.PAGE.read_text(encoding="utf-8")
    keys = make_reference.keys_of(form)
    assert len(keys) == len(msgspec.structs.fields(form))
    for key in keys:
        assert len(key.what) > 10, key
        assert f"| `{key.name}` | " in page
        given = tomllib.loads(key.example)
        needed = NEEDED.get(form, {"path": "photos"} if key.name != "path" and form.__name__ == "DataSettings" else {})
        tag = {"name": form.__struct_config__.tag} if form in PARTS else {}
        read = validated({**needed, **tag, **given}, form, "the page")
        assert set(given) == {key.name}
        assert hasattr(read, key.name)


def test_undocumented_key_is_named() -> None:
    class Unexplained(msgspec.Struct):
        first: int = 1
        """A description."""
        second: int = 2

    with pytest.raises(SystemExit, match=r"Unexplained\.second: add a docstring with its meaning"):
        make_reference.keys_of(Unexplained)


def test_key_without_a_default_value_needs_an_example() -> None:
    class Unshown(msgspec.Struct):
        first: str | None = None
        """A description."""

    with pytest.raises(SystemExit, match=r"Unshown\.first"):
        make_reference.keys_of(Unshown)


@pytest.mark.parametrize("kind", FORMS)
def test_examples_of_job_parts_name_existing_parts(kind: str) -> None:
    (example,) = [key.example for key in make_reference.keys_of(JobSettings) if key.name == kind]
    job = read_job(f'name = "it"\nstrategy = "fedseq"\ndata.test = "digits"\n{example}', "the page")
    assert getattr(job, kind)["name"] in FORMS[kind]
