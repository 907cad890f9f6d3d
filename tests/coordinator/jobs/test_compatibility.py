"""Every combination that means nothing is refused, with the way out; every mix that means something is not."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from coordinator.jobs.compatibility import objections
from coordinator.jobs.settings import JobSettings
from coordinator.jobs.tour_settings import TourSettings
from coordinator.strategies import STRATEGIES, Strategy, named
from sojourn.parts import fixed_rounds


def mixed(base: str, **changes: dict[str, Any]) -> Strategy:
    return named(base, "here").changed(changes, "it")


def told(strategy: Strategy, job: JobSettings | None = None) -> str:
    """The one objection that there is."""
    (one,) = objections(strategy, job)
    return one


NAME = "name"
NONSENSE: list[tuple[str, dict[str, dict[str, Any]], str, str]] = [
    ("fedavg", {"objective": {NAME: "scaffold"}}, "weighted-mean keeps none", 'aggregator.name = "scaffold"'),
    ("fedavg", {"aggregator": {NAME: "scaffold"}}, "sgd returns nothing", 'objective.name = "scaffold"'),
    ("fedavg", {"aggregator": {NAME: "dyn"}}, "the objective is sgd", 'objective.name = "dyn"'),
    ("scaffold", {"training": {"momentum": 0.9}}, "only for plain SGD", "training.momentum = 0"),
    ("scaffold", {"training": {"optimiser": "adam"}}, "only for plain SGD", 'training.optimiser = "sgd"'),
    ("fedcat", {"training": {"optimiser": "adam"}}, "ignore training.momentum = 0.9", "set it to 0"),
    ("clusamp", {"objective": {NAME: "dyn"}}, "clusamp may put a device on two tours", "choose another arranger"),
    (
        "clusamp",
        {"objective": {NAME: "mine:Pull"}},
        "mine:Pull remembers from visit to visit",
        'objective.name = "prox"',
    ),
    ("hierfavg", {"objective": {NAME: "dyn"}}, "edge-cloud merges at the edge", 'objective.name = "prox"'),
    (
        "hierfavg",
        {"objective": {NAME: "scaffold"}, "aggregator": {NAME: "scaffold"}},
        "edge-cloud merges at the edge",
        'schedule.name = "every-round"',
    ),
    ("chain", {"objective": {NAME: "dyn"}}, "from the second round on, and ring has one", "another schedule"),
    ("fedelmy-parallel", {"objective": {NAME: "dyn"}}, "one-shot has one", 'objective.name = "prox"'),
    ("hierfavg", {"arranger": {NAME: "single"}}, "makes sets of one device", 'arranger.name = "site"'),
    (
        "fedelmy",
        {"objective": {"start": "own"}},
        "ring hands one model from tour to tour",
        'objective.start = "received"',
    ),
    (
        "metafed",
        {"schedule": {NAME: "ring", "trips": 3}},
        "schedule ring and the objective common do not go",
        'schedule.name = "phased-ring"',
    ),
    (
        "metafed",
        {"objective": {NAME: "sgd"}},
        "phased-ring and the objective sgd do not go",
        'objective.name = "common"',
    ),
    ("metafed", {"objective": {"phase": "begin"}}, "told by the schedule", "leave it out"),
    ("metafed", {"objective": {"anchor": "round"}}, "the model of the one before it", "leave objective.anchor out"),
    ("metafed", {"aggregator": {NAME: "adam"}}, "adam would move it once more", 'aggregator.name = "uniform-mean"'),
    (
        "metafed",
        {"aggregator": {NAME: "ida"}},
        "phased-ring brings one model home",
        'aggregator.name = "weighted-mean"',
    ),
    ("fedcat", {"aggregator": {"window": 5}}, "slots does not merge after each", 'schedule.name = "every-round"'),
    ("fedelmy", {"aggregator": {"window": 2}}, "does not merge after each of several", "leave aggregator.window out"),
    ("fedgen", {"aggregator": {"window": 5}}, "makes something else of one merge", "leave aggregator.window out"),
    ("fedfusion", {"aggregator": {"window": 5}}, "fusion makes something else", "leave aggregator.window out"),
    ("visit", {"estimator": {NAME: "none"}}, "none asks for nothing of that", 'estimator.name = "signature"'),
    ("visit", {"estimator": {NAME: "sizes"}}, "sizes asks for nothing of that", 'estimator.name = "signature"'),
    ("hiercluster", {"estimator": {NAME: "sizes"}}, "sizes asks for nothing", 'estimator.name = "signature"'),
    ("visit", {"estimator": {NAME: "classifier"}}, "needs one number for each class", '"class-counts"'),
    ("visit", {"estimator": {NAME: "updates"}}, "updates gives rows of another kind", '"confidence"'),
    (
        "fedseq",
        {"arranger": {"grouping": "random"}, "estimator": {NAME: "none"}},
        "how many samples each device has",
        'estimator.name = "sizes"',
    ),
    ("fedseq", {"arranger": {"sets": 9}}, "sets = 9 with size = 0 says neither", "set both, or neither"),
    ("fedseq", {"arranger": {"size": 9}}, "sets = 0 with size = 9 says neither", "set both, or neither"),
    ("fedseq", {"estimator": {NAME: "classifier"}}, "tau = kl compares distributions", 'arranger.tau = "cosine"'),
    (
        "fedseq",
        {"estimator": {NAME: "updates"}, "arranger": {"tau": "gini"}},
        "tau = gini compares distributions",
        'estimator.name = "confidence"',
    ),
    (
        "fedseq",
        {"estimator": {NAME: "updates"}, "arranger": {"tau": "wasserstein"}},
        "tau = wasserstein",
        '"euclidean"',
    ),
    ("hiercluster", {"estimator": {NAME: "updates", "epochs": 0}}, "only the tour's end", "estimator.epochs = 1"),
    ("clusamp", {"schedule": {"passes": 2}}, "on a tour of several visits", "estimator.epochs = 1"),
    (
        "hiercluster",
        {"estimator": {NAME: "updates", "epochs": 0}, "arranger": {NAME: "single"}, "schedule": {NAME: "one-shot"}},
        "one-shot arranges devices only then",
        "estimator.epochs = 1",
    ),
    (
        "fedavg",
        {"arranger": {"fraction": 0.5}, "schedule": {"rearrange_every": 0}},
        "the others never train",
        "schedule.rearrange_every = 1",
    ),
    (
        "hierfavg",
        {"arranger": {"fraction": 0.5}, "schedule": {"rearrange_every": 0}},
        "site draws the devices of a round",
        "schedule.rearrange_every = 1",
    ),
    ("fedcat", {"schedule": {"rearrange_every": 0}}, "slots as it is set keeps the first draw", "rearrange_every = 1"),
    (
        "fedavg",
        {"arranger": {"fraction": 0.5}, "schedule": {NAME: "ring", "trips": 2}},
        "ring as it is set keeps the first draw",
        'schedule.name = "every-round"',
    ),
    ("fedgsp", {"arranger": {NAME: "fedseq"}}, "fedseq cannot be told a number", 'arranger.name = "icg"'),
    ("fedgsp", {"arranger": {NAME: "single"}}, "single cannot be told a number", '"random"'),
    ("clusamp", {"aggregator": {NAME: "weighted-mean"}}, "weigh them by samples again", '"uniform-mean"'),
    ("clusamp", {"aggregator": {NAME: "yogi"}}, "weigh them by samples again", 'aggregator.weighting = "uniform"'),
    ("chain", {"aggregator": {NAME: "ida"}}, "ring brings one model home", 'aggregator.name = "weighted-mean"'),
    ("chain", {"aggregator": {NAME: "adam"}}, "what devices learnt would be lost", '"weighted-mean"'),
    ("fedelmy-parallel", {"aggregator": {NAME: "adagrad"}}, "adagrad moves each number", '"weighted-mean"'),
]
SENSE: list[tuple[str, dict[str, dict[str, Any]]]] = [
    ("fedseq", {"objective": {NAME: "dyn"}, "aggregator": {NAME: "dyn"}}),
    ("fedseq", {"objective": {NAME: "dyn"}}),
    ("visit", {"aggregator": {NAME: "yogi"}}),
    ("visit", {"objective": {NAME: "scaffold"}, "aggregator": {NAME: "scaffold"}}),
    ("fedcat", {"objective": {NAME: "dyn"}, "aggregator": {NAME: "dyn"}}),
    ("fedseq-inter", {"objective": {NAME: "scaffold"}, "aggregator": {NAME: "scaffold"}}),
    ("hierfavg", {"objective": {NAME: "prox"}, "aggregator": {NAME: "adam"}}),
    ("fedgsp", {"estimator": {NAME: "signature"}}),
    ("fedgsp", {"arranger": {NAME: "visit"}, "estimator": {NAME: "confidence"}}),
    ("fedseq", {"arranger": {"grouping": "random"}, "estimator": {NAME: "sizes"}}),
    ("fedseq", {"arranger": {"grouping": "random", "sets": 9, "size": 4}, "estimator": {NAME: "none"}}),
    ("fedseq", {"arranger": {"grouping": "k-means"}, "estimator": {NAME: "classifier"}}),
    ("fedseq", {"arranger": {"tau": "cosine"}, "estimator": {NAME: "classifier"}}),
    ("fedseq", {"arranger": {"sets": 9, "size": 4, "tau": "cosine", "estimate": "mean"}}),
    ("hiercluster", {"estimator": {NAME: "updates"}}),
    ("clusamp", {"estimator": {"epochs": 1}, "schedule": {"rearrange_every": 5}}),
    ("clusamp", {"aggregator": {NAME: "yogi", "weighting": "uniform"}}),
    ("fedavg", {"estimator": {NAME: "signature"}}),
    ("fedavg", {"schedule": {"rearrange_every": 0}}),
    ("fedavg", {"arranger": {"fraction": 0.5}, "schedule": {NAME: "one-shot"}}),
    ("chain", {"objective": {NAME: "dyn"}, "schedule": {"trips": 2}}),
    ("chain", {"aggregator": {NAME: "adam"}, "schedule": {"trips": 2}}),
    ("chain", {"aggregator": {NAME: "avgm"}}),
    ("fedavg", {"objective": {NAME: "mine:Pull"}}),
    ("chain", {"objective": {NAME: "mine:Pull"}}),
    ("fedelmy-parallel", {"arranger": {NAME: "random", "sets": 2}}),
    ("fedelmy-parallel", {"schedule": {NAME: "every-round"}}),
    ("fedbn", {"aggregator": {NAME: "yogi"}}),
    ("fedseq", {"objective": {NAME: "local-norms"}}),
    ("chain", {"objective": {NAME: "local-norms"}, "schedule": {"trips": 2}}),
    ("metafed", {"aggregator": {NAME: "weighted-mean"}}),
    ("metafed", {"objective": {"share_norms": False, "layer": "logits"}}),
]


@pytest.mark.parametrize(
    ("base", "changes", "why", "do"), NONSENSE, ids=[f"{base}-{number}" for number, (base, *_) in enumerate(NONSENSE)]
)
def test_nonsense_is_refused_with_a_reason_and_the_way_out(
    base: str, changes: dict[str, dict[str, Any]], why: str, do: str
) -> None:
    sentence = next(each for each in objections(mixed(base, **changes)) if why in each)
    reason, _, way_out = sentence.rpartition(": ")
    assert why in reason
    assert do in way_out


@pytest.mark.parametrize(("base", "changes"), SENSE, ids=[f"{base}-{number}" for number, (base, _) in enumerate(SENSE)])
def test_mixes_that_mean_something_are_not(base: str, changes: dict[str, dict[str, Any]]) -> None:
    assert objections(mixed(base, **changes)) == []


@pytest.mark.parametrize(
    ("base", "changes", "why", "do"), NONSENSE, ids=[f"{base}-{number}" for number, (base, *_) in enumerate(NONSENSE)]
)
def test_doing_what_is_said_helps(base: str, changes: dict[str, dict[str, Any]], why: str, do: str) -> None:
    strategy = mixed(base, **changes)
    before = next(each for each in objections(strategy) if why in each)
    for way_out in re.split(r", or |: ", before.rpartition(": ")[2]):
        advice: dict[str, dict[str, Any]] = {}
        for kind, key, value in re.findall(r"(\w+)\.(\w+) = (\"[^\"]+\"|\d+)", way_out):
            advice.setdefault(kind, {})[key] = json.loads(value)
        if advice:
            after = strategy.changed(advice, "it")
            assert before not in objections(after), way_out


def test_minimal_nonsense_has_one_objection() -> None:
    alone = [(base, changes) for base, changes, *_ in NONSENSE if len(changes) == 1]
    counts = [len(objections(mixed(base, **changes))) for base, changes in alone]
    assert counts.count(1) >= len(counts) - 2, "one change, one reason"
    assert told(mixed("fedavg", aggregator={NAME: "dyn"})).startswith("the aggregator dyn takes its a from")


def test_a_weighted_estimate_needs_samples_and_a_plain_one_does_not() -> None:
    # Rows without a word about samples do not exist among ours, so the struct is made by hand.
    fedseq = named("fedseq", "here")
    of_size = {"sets": 9, "size": 4, "grouping": "greedy"}
    for estimate, said in (("weighted-mean", 1), ("mean", 0), ("midpoint", 0)):
        mix = fedseq.changed({"arranger": {**of_size, "estimate": estimate}, "estimator": {NAME: "none"}}, "it")
        assert sum("how many samples" in each for each in objections(mix)) == said


def job(strategy: str, **fields: Any) -> JobSettings:
    return msgspec.convert({"name": "it", "strategy": strategy, **fields}, JobSettings)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (job("fedelmy", rounds=5), "the schedule ring makes 1: leave rounds out, or set schedule.trips = 5,"),
        (job("fedelmy-few-shot", rounds=1), "rounds = 1, and the schedule ring makes 3"),
        (job("fedelmy-parallel", rounds=2), 'one-shot makes 1: leave rounds out, or set schedule.name = "every'),
        (job("metafed", rounds=5), "phased-ring makes 301: leave rounds out, or set schedule.trips = 3:"),
        (
            job("metafed", task={"kind": "regression"}),
            "by the share of right answers, and a task of the kind 'regression'",
        ),
        (job("metafed", target=0.9), "target = 0.9 goes by the job's one model"),
        (job("fedbn", target=0.9), "the result is a model for each device: leave target out"),
        (job("fedbn", model={"batchnorm": "frozen"}), "devices are to keep their own: leave it out"),
        (job("metafed", model={"batchnorm": "frozen"}, objective={"share_norms": False}), "leave it out, or set it"),
        (job("fedavg", tours={"on_lost_visit": "swap", "spares": 0}), "tours.spares = 0 gives a tour none"),
        (job("fedavg", tours={"on_lost_visit": "retry", "retries": 0}), "tours.retries = 0 never tries again"),
    ],
)
def test_a_job_that_says_otherwise_than_its_strategy(asked: JobSettings, said: str) -> None:
    assert said in told(asked.parts(), asked)
    assert objections(asked.parts()) == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_job_that_says_the_same_is_fine(name: str) -> None:
    rounds = fixed_rounds(named(name, "here").schedule)
    for asked in (job(name), job(name, rounds=rounds or 7), job(name, tours={"on_lost_visit": "swap"})):
        assert objections(asked.parts(), asked) == []
    assert job(name).tours == TourSettings()


class Arranges(msgspec.Struct):
    """An arranger of one's own."""

    depth: int = 1

    def arrange(self) -> None:
        """Do nothing."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """This module, as a job file names it."""
    import sys
    from types import ModuleType

    module = ModuleType("parts_of_mine")
    module.Arranges = Arranges  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "parts_of_mine", module)
    return "parts_of_mine:Arranges"


@pytest.mark.parametrize("kind", ["estimator", "arranger", "schedule", "aggregator"])
def test_own_parts_of_the_coordinator_must_be_installed_there(kind: str) -> None:
    said = [each for each in objections(mixed("fedavg", **{kind: {NAME: "not.there:Mine"}})) if "not.there" in each]
    assert len(said) == 1
    assert said[0].startswith("not.there:Mine is not installed here")


def test_own_parts_must_have_their_method_and_know_their_settings(here: str) -> None:
    assert objections(mixed("fedavg", arranger={NAME: here, "depth": 2})) == []
    assert re.match("parts_of_mine:Arranges has no depart and no merges", told(mixed("fedavg", schedule={NAME: here})))
    assert re.match("parts_of_mine:Arranges has no aggregate", told(mixed("fedavg", aggregator={NAME: here})))
    assert re.match("parts_of_mine:Arranges has no estimate", told(mixed("fedavg", estimator={NAME: here})))
    assert "cannot be made of" in told(mixed("fedavg", arranger={NAME: here, "depth": "deep"}))


def test_an_own_arranger_that_may_repeat_a_device_is_refused_with_memory(here: str) -> None:
    twice = {NAME: here, "once": False}
    assert "may put a device on two tours at once" in told(mixed("feddyn", arranger=twice))
    assert objections(mixed("feddyn", arranger={NAME: here})) == []
    assert objections(mixed("fedprox", arranger=twice)) == []
    assert objections(mixed("feddyn", arranger=twice, schedule={NAME: "ring", "trips": 2})) == []


def test_a_visit_may_not_be_over_before_its_lease() -> None:
    short = job("visit", tours={"lease": 60, "deadline": 59})
    (reason,) = objections(short.parts(), short)
    assert reason.startswith("tours.deadline = 59 is over before a lease of tours.lease = 60 seconds is: ")
    for fine in ({"lease": 60, "deadline": 60}, {"lease": 1e6}):
        assert objections(job("visit", tours=fine).parts(), job("visit", tours=fine)) == []
