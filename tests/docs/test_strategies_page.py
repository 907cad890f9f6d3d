"""docs/strategies.md lists all strategies and parts, and no others; its examples work."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest

from coordinator.aggregators.aggregating import aggregate
from coordinator.aggregators.contributions import Contribution, MergeContext
from coordinator.console.strategy_commands import requirements_of
from coordinator.finishers.finishing import finish
from coordinator.finishers.task import FinishTask, MemberModel
from coordinator.jobs import settings as job_file
from coordinator.jobs.compatibility import objections
from coordinator.jobs.settings_tables import MODES, GateSettings, TourSettings
from coordinator.rounds.schedules import Departure, Moment, depart, merges
from coordinator.strategies import STRATEGIES, Named
from coordinator.strategies.strategy import FORMS
from edge_agent.settings import AgentSettings
from edge_agent.training import objectives
from hierarchy.arranging.arrangement import ArrangeContext, Candidates, ClientSet, arrange
from sojourn import parts
from sojourn.model.exemplars import Exemplars
from sojourn.parts import custom_code
from sojourn.protocol.envelope import MESSAGES
from sojourn.protocol.metric_names import finisher_names, own_names
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec
from sojourn.settings import dumps
from tests.sojourn.protocol.examples import kit_without_graphs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
HEADINGS = {kind: f"### {kind.capitalize()}s" for kind in FORMS}
FORMS_OF = [(kind, name, form) for kind, forms in FORMS.items() for name, form in forms.items() if name != "own"]
TINY = kit_without_graphs(ModelSpec((TensorSpec("w", (2,)),)), InputSpec((2,)))
JOB = 'name = "it"\nstrategy = "fedavg"\ndata = { classes = ["a", "b"], input = [2] }'
MEASURES = {"vts", "intra_cs", "inter_cs", "balance", "covered", "cpd"}


def section(heading: str) -> str:
    """Return the text under a heading."""
    _, _, rest = PAGE.partition(f"\n{heading}\n")
    assert rest, f"docs/strategies.md has no {heading!r}"
    return re.split(r"\n#{1,3} ", rest)[0]


def rows(text: str) -> dict[str, list[str]]:
    """Return the rows of the tables in a text by the name in their first column."""
    lines = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    return {first.strip("`"): others for first, *others in lines}


def listed_fields(form: type[msgspec.Struct]) -> str:
    fields = [f"`{dumps({field.name: field.default}).strip()}`" for field in msgspec.structs.fields(form)]
    return ", ".join(fields) or "-"


def choices(form: type[msgspec.Struct]) -> set[str]:
    hints = get_type_hints(form, include_extras=False).values()
    options = [
        option for hint in hints for option in (get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint])
    ]
    return {choice for option in options if get_origin(option) is Literal for choice in get_args(option)}


@pytest.mark.parametrize("each", STRATEGIES.values(), ids=lambda each: each.name)
def test_every_strategy_has_a_row(each: Named) -> None:
    good_for, visits, volume, asked = rows(section("## The strategies"))[each.name]
    assert good_for == each.summary
    assert re.search(r"\(.+\)", visits)
    assert volume.count(", ") == 1
    listed = " ".join(requirements_of(each.strategy))
    for word in ("sample counts", "class counts", "memory", "gradients"):
        assert (word in asked) == (word in listed), f"{word}: {listed}"
    assert ("estimation of 10 epochs" in asked) == ("visit for each device, of 10 epochs" in listed)


def test_strategy_table_has_no_other_row() -> None:
    assert list(rows(section("## The strategies"))) == list(STRATEGIES)


@pytest.mark.parametrize("each", STRATEGIES.values(), ids=lambda each: each.name)
def test_documented_volume_matches_visits_and_tours(each: Named) -> None:
    _, visits, volume, _ = rows(section("## The strategies"))[each.name]
    # A generator is small, has a different length, and is downloaded once: the page lists its size separately.
    extra = [name for name in each.strategy.objective.receives if name != "generator"]
    vectors = 2 * (1 + len(extra))
    # A number of transfers as (number, symbols): 0.2·N is (0.2, N), and 2NP is (2, NP).
    by_visit, by_tour = (count_of(side) for side in re.fullmatch(r"([^ ]+) \(([^)]+)\).*", visits).groups())  # type: ignore[union-attr]
    at_sites, to_cloud = (count_of(side) for side in volume.split(", "))
    assert at_sites[0] == pytest.approx(vectors * by_visit[0])
    assert to_cloud[0] == pytest.approx(vectors * by_tour[0])
    assert (at_sites[1], to_cloud[1]) == (by_visit[1] + "P", by_tour[1] + "P")


def count_of(text: str) -> tuple[float, str]:
    number, symbols = re.fullmatch(r"([\d.]*)(.*)", text.replace("·", "")).groups()  # type: ignore[union-attr]
    return float(number or 1), symbols


@pytest.mark.parametrize(("kind", "name", "form"), FORMS_OF, ids=lambda value: str(value)[:40])
def test_every_part_has_a_row_with_its_fields_and_choices(kind: str, name: str, form: type[msgspec.Struct]) -> None:
    fields, what = rows(section(HEADINGS[kind]))[name]
    assert fields == listed_fields(form)
    assert choices(form) <= set(re.findall(r'[`"]([\w-]+)[`"]', f"{fields} {what}"))


@pytest.mark.parametrize("kind", FORMS)
def test_part_tables_have_no_other_row(kind: str) -> None:
    names = [name for name in FORMS[kind] if name != "own"]
    assert list(rows(section(HEADINGS[kind]))) == [*names, "package.module:Class"]


def test_every_training_field_is_described() -> None:
    for field in listed_fields(parts.Training).split(", "):
        assert field in section("### Training")


def known_words() -> set[str]:
    """Return all that the page may have in backticks."""
    forms = [form for _, _, form in FORMS_OF] + [parts.Training, parts.TourPolicy, job_file.JobData, AgentSettings]
    fields = {field.name for form in forms for field in msgspec.structs.fields(form)}
    messages = {form.__name__ for form in MESSAGES.values()}
    picked = {choice for form in forms for choice in choices(form)}
    dotted = {f"tours.{field.name}" for field in msgspec.structs.fields(TourSettings)}
    dotted |= {f"gate.{field.name}" for field in msgspec.structs.fields(GateSettings)}
    dotted |= {f"data.{field.name}" for field in msgspec.structs.fields(job_file.JobData)}
    finished = {*finisher_names("classification"), "vote_loss", "adv = 0.0", "apart", "alone"}
    mentioned = {
        "members",
        "load",
        "reported",
        "mean",
        "kit",
        "job",
        "seed",
        "state",
        "exemplars",
        "Finished",
        "samples",
    }
    lists = {'shares = ["class-counts"]', 'objectives = ["mine:Sparse"]'}
    seen = {
        "logits",
        "penultimate",
        "trunk",
        "vector",
        "weight",
        "devices",
        "objective",
        "returned",
        "memory",
        "begin",
        "end",
        "Departure",
        "Moment",
    }
    optional = {"wanted_sets(number, devices)", "rearranges(number)", 'sojourn.randomness.generator(seed, "a name")'}
    shown = {
        "show",
        "sojourn strategies",
        "sojourn strategies show fedseq",
        "agent.toml",
        "encoding",
        "float16",
        "int8",
    }
    own_part = {"package.module:Class", 'arranger = { name = "mine:Neighbours", size = 3 }', "name", "[training]"}
    tables = {"[gate]", "[tours]", "true", "false"}
    modes = {"gate", *MODES, *(f'"{mode}"' for mode in MODES), "visits.csv", "sojourn job status"}
    modes |= {"simulate", "compare", "papers", "against_factor"}
    metrics = {*own_names("classification"), "own_loss", "88.9 % own", "target", "sojourn job list"}
    return (
        {*STRATEGIES, *FORMS, "training", *(name for _, name, _ in FORMS_OF), *MEASURES}
        | fields
        | messages
        | picked
        | dotted
        | lists
        | seen
        | optional
        | shown
        | metrics
        | own_part
        | modes
        | tables
        | finished
        | mentioned
        | {"sends", "apart = false", "alone = true", "accuracy", "sojourn job watch", "projections", "shares"}
    )


def test_every_name_on_the_page_exists() -> None:
    known = known_words()
    fields = {name for _, _, form in FORMS_OF for name in re.findall(r"`([^`]+)`", listed_fields(form))}
    fields |= set(re.findall(r"`([^`]+)`", listed_fields(parts.Training)))
    strange = []
    for word in re.findall(r"`([^`]+)`", PROSE):
        key, _, value = word.partition(" = ")
        set_to = key in known and value.strip('"') in known | {"0"}
        if word not in known | fields and not set_to and not (ROOT / word).is_file():
            strange.append(word)
    assert strange == []


def test_gate_defaults_match_the_code() -> None:
    rows_of_gate = re.findall(r"^\| (`gate[^|]*) \| ([^|]*) \|", PAGE, re.MULTILINE)
    listed = {
        name: json.loads(value.strip("`").replace(",", ""))
        for names, values in rows_of_gate
        for name, value in zip(re.findall(r"gate\.(\w+)", names), values.split(", "), strict=True)
    }
    assert listed == msgspec.structs.asdict(GateSettings())


def test_named_visit_messages_exist() -> None:
    assert {"Visit", "Visited", "Accepted", "Prepare", "Tour", "Toured"} <= {
        form.__name__ for form in MESSAGES.values()
    }


def test_example_job_file_is_valid() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    job = job_file.read_job(text, "the page")
    assert objections(job.parts(), job) == []
    assert (job.parts().objective, job.parts().aggregator) == (parts.Dyn(), parts.DynServer())
    assert job.parts().arranger == parts.FedSeqArranger(max_devices=5)


# --- the examples


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the page's Python as an installed module."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/strategies.md", "exec"), module.__dict__)
    return module


def numbers(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_example_arranger_runs(mine: ModuleType) -> None:
    candidates = Candidates(("a", "b", "c", "d"), {"s1": frozenset("abc"), "s2": frozenset("cd")})
    made = arrange(parts.CustomArranger(part="mine:Neighbours", settings={"size": 2}), candidates, ArrangeContext(0))
    assert made.sets == (ClientSet("s1", ("a", "b")), ClientSet("s1", ("c",)), ClientSet("s2", ("d",)))


def test_example_aggregator_runs(mine: ModuleType) -> None:
    came = [Contribution(numbers(value, 0), 1.0) for value in (1, 2, 900)]
    settings = parts.OwnAggregator(part="mine:Median")
    model, state = aggregate(settings, numbers(7, 7), came, {}, MergeContext(3, parts.Sgd()))
    np.testing.assert_array_equal(model, numbers(2, 0))
    assert state == {}
    model, _ = aggregate(settings, numbers(7, 7), [], {}, MergeContext(3, parts.Sgd()))
    np.testing.assert_array_equal(model, numbers(7, 7))


def test_example_estimator_runs(mine: ModuleType) -> None:
    graphs = SimpleNamespace(logits=lambda model, x: np.eye(3)[[0, 0, 2, 0]] * model[0])
    exemplars = Exemplars.of(np.zeros((4, 2), np.float32), np.array([0, 1, 2, 0]))
    row = custom_code.load(parts.OwnEstimator(part="mine:Answers"), "estimate").estimate(graphs, numbers(1), exemplars)
    np.testing.assert_array_equal(row, [0.75, 0, 0.25])


def test_example_finisher_runs(mine: ModuleType) -> None:
    members = [MemberModel(name, 1.0, lambda it=it: numbers(it, 0)) for name, it in zip("abc", (1, 2, 9), strict=True)]  # type: ignore[misc]
    task = FinishTask(members, numbers(4, 0), TINY, job_file.read_job(JOB, "it"), 0)
    done = finish(parts.OwnFinisher(part="mine:Trimmed"), task)
    assert done.model is not None
    np.testing.assert_array_equal(done.model, numbers(1.5, 0))
    assert done.notes == ("left 1 out",)


def test_example_schedule_runs(mine: ModuleType) -> None:
    settings = parts.OwnSchedule(part="mine:Alternating")
    sets = [ClientSet("s1", (name,)) for name in "abc"]
    assert depart(settings, sets, Moment(1, 0, 3, 0)) == [Departure(sets[1])]
    assert depart(settings, sets, Moment(2, 0, 3, 0)) == [Departure(sets[0]), Departure(sets[2])]
    assert merges(settings, Moment(1, 0, 3, 0))


def test_example_objective_runs(mine: ModuleType) -> None:
    visit = objectives.begin(parts.OwnObjective(part="mine:Sparse", settings={"pull": 0.5}), numbers(0, 0, 0), {}, {})
    assert visit is not None
    loss, direction = visit.direction(numbers(2, -3, 0), lambda w: (1.5, w))
    assert loss == 1.5
    np.testing.assert_array_equal(direction, numbers(2.5, -3.5, 0))
    assert visit.end(numbers(0, 0, 0), 1, 0.1) == objectives.VisitOutput()


def test_custom_parts_of_the_page_are_valid_in_a_job(mine: ModuleType) -> None:
    text = """
        name = "it"
        strategy = "naive-gsp"
        arranger = { name = "mine:Neighbours", size = 3 }
        aggregator = { name = "mine:Median" }
        estimator = { name = "mine:Answers", epochs = 2 }
        schedule = { name = "mine:Alternating" }
        data = { test = "digits" }
    """
    made = job_file.read_job(text, "it").parts()
    assert made.arranger == parts.CustomArranger(part="mine:Neighbours", settings={"size": 3})
    assert made.estimator == parts.OwnEstimator(part="mine:Answers", epochs=2)
