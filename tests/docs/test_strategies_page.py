"""docs/strategies.md says what there is, all of it, and nothing else; its examples work."""

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
from coordinator.finishers.finishing import finish
from coordinator.finishers.task import FinishTask, MemberModel
from coordinator.jobs import settings as job_file
from coordinator.jobs.compatibility import objections
from coordinator.jobs.tour_settings import MODES, GateSettings, TourSettings
from coordinator.rounds.schedules import Departure, Moment, depart, merges
from coordinator.strategies import STRATEGIES, Named
from coordinator.strategies.requirements import requirements_of
from coordinator.strategies.strategy import FORMS
from edge_agent.settings import AgentSettings
from edge_agent.training import objectives
from hierarchy.arranging.arrangement import ArrangeContext, Candidates, ClientSet, arrange
from sojourn import parts
from sojourn.model.exemplars import Exemplars
from sojourn.parts import own
from sojourn.protocol.figure_names import finisher_names, own_names
from sojourn.protocol.messages import Message
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec
from sojourn.toml import dumps
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
    """What stands under a heading."""
    _, _, rest = PAGE.partition(f"\n{heading}\n")
    assert rest, f"docs/strategies.md has no {heading!r}"
    return re.split(r"\n#{1,3} ", rest)[0]


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the tables in a text by the name in their first column."""
    lines = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    return {first.strip("`"): others for first, *others in lines}


def told_fields(form: type[msgspec.Struct]) -> str:
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
    said = " ".join(requirements_of(each.strategy))
    for word in ("samples told", "class counts", "memory", "gradients"):
        assert (word in asked) == (word in said), f"{word}: {said}"
    assert ("estimation of 10 epochs" in asked) == ("visit for each device, of 10 epochs" in said)


def test_the_table_of_strategies_has_no_other_row() -> None:
    assert list(rows(section("## The strategies"))) == list(STRATEGIES)


@pytest.mark.parametrize("each", STRATEGIES.values(), ids=lambda each: each.name)
def test_bytes_are_those_of_its_visits_and_tours(each: Named) -> None:
    _, visits, volume, _ = rows(section("## The strategies"))[each.name]
    # A generator is small, has a length of its own, and comes down once: the page tells its size apart.
    beside = [name for name in each.strategy.objective.receives if name != "generator"]
    vectors = 2 * (1 + len(beside))
    # A figure as (number, symbols): 0.2·N is (0.2, N), and 2NP is (2, NP).
    by_visit, by_tour = (figure(side) for side in re.fullmatch(r"([^ ]+) \(([^)]+)\).*", visits).groups())  # type: ignore[union-attr]
    at_sites, to_cloud = (figure(side) for side in volume.split(", "))
    assert at_sites[0] == pytest.approx(vectors * by_visit[0])
    assert to_cloud[0] == pytest.approx(vectors * by_tour[0])
    assert (at_sites[1], to_cloud[1]) == (by_visit[1] + "P", by_tour[1] + "P")


def figure(text: str) -> tuple[float, str]:
    number, symbols = re.fullmatch(r"([\d.]*)(.*)", text.replace("·", "")).groups()  # type: ignore[union-attr]
    return float(number or 1), symbols


@pytest.mark.parametrize(("kind", "name", "form"), FORMS_OF, ids=lambda value: str(value)[:40])
def test_every_part_has_a_row_with_its_fields_and_choices(kind: str, name: str, form: type[msgspec.Struct]) -> None:
    fields, what = rows(section(HEADINGS[kind]))[name]
    assert fields == told_fields(form)
    assert choices(form) <= set(re.findall(r'[`"]([\w-]+)[`"]', f"{fields} {what}"))


@pytest.mark.parametrize("kind", FORMS)
def test_the_tables_of_parts_have_no_other_row(kind: str) -> None:
    names = [name for name in FORMS[kind] if name != "own"]
    assert list(rows(section(HEADINGS[kind]))) == [*names, "package.module:Class"]


def test_training_is_all_there() -> None:
    for field in told_fields(parts.Training).split(", "):
        assert field in section("### Training")


def known_words() -> set[str]:
    """All that the page may put in backticks."""
    forms = [form for _, _, form in FORMS_OF] + [parts.Training, parts.TourPolicy, job_file.JobData, AgentSettings]
    fields = {field.name for form in forms for field in msgspec.structs.fields(form)}
    messages = {form.__name__ for form in get_args(Message)}
    picked = {choice for form in forms for choice in choices(form)}
    dotted = {f"tours.{field.name}" for field in msgspec.structs.fields(TourSettings)}
    dotted |= {f"gate.{field.name}" for field in msgspec.structs.fields(GateSettings)}
    dotted |= {f"data.{field.name}" for field in msgspec.structs.fields(job_file.JobData)}
    finished = {*finisher_names("classification"), "vote_loss", "adv = 0.0", "apart", "alone"}
    told_of = {"members", "load", "told", "mean", "kit", "job", "seed", "state", "exemplars", "Finished", "samples"}
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
    told = {"show", "sojourn strategies", "sojourn strategies show fedseq", "agent.toml", "encoding", "float16", "int8"}
    own_part = {"package.module:Class", 'arranger = { name = "mine:Neighbours", size = 3 }', "name", "[training]"}
    tables = {"[gate]", "[tours]", "true", "false"}
    modes = {"gate", *MODES, *(f'"{mode}"' for mode in MODES), "visits.csv", "sojourn job status"}
    modes |= {"simulate", "compare", "papers", "against_factor"}
    figures = {*own_names("classification"), "own_loss", "88.9 % own", "target", "sojourn job list"}
    return (
        {*STRATEGIES, *FORMS, "training", *(name for _, name, _ in FORMS_OF), *MEASURES}
        | fields
        | messages
        | picked
        | dotted
        | lists
        | seen
        | optional
        | told
        | figures
        | own_part
        | modes
        | tables
        | finished
        | told_of
        | {"sends", "apart = false", "alone = true", "accuracy", "sojourn job watch", "projections", "shares"}
    )


def test_nothing_is_named_that_does_not_exist() -> None:
    known = known_words()
    fields = {told for _, _, form in FORMS_OF for told in re.findall(r"`([^`]+)`", told_fields(form))}
    fields |= set(re.findall(r"`([^`]+)`", told_fields(parts.Training)))
    strange = []
    for word in re.findall(r"`([^`]+)`", PROSE):
        key, _, value = word.partition(" = ")
        set_to = key in known and value.strip('"') in known | {"0"}
        if word not in known | fields and not set_to and not (ROOT / word).is_file():
            strange.append(word)
    assert strange == []


def test_the_gates_defaults_are_those_of_the_code() -> None:
    rows_of_gate = re.findall(r"^\| (`gate[^|]*) \| ([^|]*) \|", PAGE, re.MULTILINE)
    listed = {
        name: json.loads(value.strip("`").replace(",", ""))
        for names, values in rows_of_gate
        for name, value in zip(re.findall(r"gate\.(\w+)", names), values.split(", "), strict=True)
    }
    assert listed == msgspec.structs.asdict(GateSettings())


def test_the_messages_of_a_visit_are_named_as_they_are() -> None:
    assert {"Visit", "Visited", "Accepted", "Prepare", "Tour", "Toured"} <= {
        form.__name__ for form in get_args(Message)
    }


def test_the_job_file_on_the_page_is_sound() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    job = job_file.read_job(text, "the page")
    assert objections(job.parts(), job) == []
    assert (job.parts().objective, job.parts().aggregator) == (parts.Dyn(), parts.DynServer())
    assert job.parts().arranger == parts.FedSeqArranger(max_devices=5)


# --- the examples


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The page's Python, as a module that is installed."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/strategies.md", "exec"), module.__dict__)
    return module


def numbers(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_the_arranger(mine: ModuleType) -> None:
    candidates = Candidates(("a", "b", "c", "d"), {"s1": frozenset("abc"), "s2": frozenset("cd")})
    made = arrange(parts.OwnArranger(part="mine:Neighbours", settings={"size": 2}), candidates, ArrangeContext(0))
    assert made.sets == (ClientSet("s1", ("a", "b")), ClientSet("s1", ("c",)), ClientSet("s2", ("d",)))


def test_the_aggregator(mine: ModuleType) -> None:
    came = [Contribution(numbers(value, 0), 1.0) for value in (1, 2, 900)]
    settings = parts.OwnAggregator(part="mine:Median")
    model, state = aggregate(settings, numbers(7, 7), came, {}, MergeContext(3, parts.Sgd()))
    np.testing.assert_array_equal(model, numbers(2, 0))
    assert state == {}
    model, _ = aggregate(settings, numbers(7, 7), [], {}, MergeContext(3, parts.Sgd()))
    np.testing.assert_array_equal(model, numbers(7, 7))


def test_the_estimator(mine: ModuleType) -> None:
    graphs = SimpleNamespace(logits=lambda model, x: np.eye(3)[[0, 0, 2, 0]] * model[0])
    exemplars = Exemplars.of(np.zeros((4, 2), np.float32), np.array([0, 1, 2, 0]))
    row = own.load(parts.OwnEstimator(part="mine:Answers"), "estimate").estimate(graphs, numbers(1), exemplars)
    np.testing.assert_array_equal(row, [0.75, 0, 0.25])


def test_the_finisher(mine: ModuleType) -> None:
    members = [MemberModel(name, 1.0, lambda it=it: numbers(it, 0)) for name, it in zip("abc", (1, 2, 9), strict=True)]  # type: ignore[misc]
    task = FinishTask(members, numbers(4, 0), TINY, job_file.read_job(JOB, "it"), 0)
    done = finish(parts.OwnFinisher(part="mine:Trimmed"), task)
    assert done.model is not None
    np.testing.assert_array_equal(done.model, numbers(1.5, 0))
    assert done.notes == ("left 1 out",)


def test_the_schedule(mine: ModuleType) -> None:
    settings = parts.OwnSchedule(part="mine:Alternating")
    sets = [ClientSet("s1", (name,)) for name in "abc"]
    assert depart(settings, sets, Moment(1, 0, 3, 0)) == [Departure(sets[1])]
    assert depart(settings, sets, Moment(2, 0, 3, 0)) == [Departure(sets[0]), Departure(sets[2])]
    assert merges(settings, Moment(1, 0, 3, 0))


def test_the_objective(mine: ModuleType) -> None:
    visit = objectives.begin(parts.OwnObjective(part="mine:Sparse", settings={"pull": 0.5}), numbers(0, 0, 0), {}, {})
    assert visit is not None
    loss, direction = visit.direction(numbers(2, -3, 0), lambda w: (1.5, w))
    assert loss == 1.5
    np.testing.assert_array_equal(direction, numbers(2.5, -3.5, 0))
    assert visit.end(numbers(0, 0, 0), 1, 0.1) == objectives.Left()


def test_own_parts_of_the_page_are_taken_in_a_job(mine: ModuleType) -> None:
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
    assert made.arranger == parts.OwnArranger(part="mine:Neighbours", settings={"size": 3})
    assert made.estimator == parts.OwnEstimator(part="mine:Answers", epochs=2)
