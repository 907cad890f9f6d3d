"""Tests that invalid combinations of parts are refused with a fix, and that valid ones are accepted."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from coordinator.jobs.compatibility import objections
from coordinator.jobs.settings import JobSettings
from coordinator.jobs.settings_tables import TourSettings
from coordinator.strategies import STRATEGIES, Strategy, named
from sojourn.parts import Prox


def mixed(base: str, **changes: dict[str, Any]) -> Strategy:
    return named(base, "here").changed(changes, "it")


def objection_to(strategy: Strategy, job: JobSettings | None = None) -> str:
    """Return the only objection."""
    (one,) = objections(strategy, job)
    return one


NAME = "name"
INVALID: list[tuple[str, dict[str, dict[str, Any]], str, str]] = [
    (
        "fedavg",
        {"objective": {NAME: "scaffold"}},
        "aggregator scaffold, not weighted-mean",
        'aggregator.name = "scaffold"',
    ),
    ("fedavg", {"aggregator": {NAME: "scaffold"}}, "objective scaffold, not sgd", 'objective.name = "scaffold"'),
    ("fedavg", {"aggregator": {NAME: "dyn"}}, "objective dyn, not sgd", 'objective.name = "dyn"'),
    ("scaffold", {"training": {"momentum": 0.9}}, "needs plain gradients", "training.momentum = 0"),
    ("scaffold", {"training": {"optimiser": "adam"}}, "needs plain gradients", 'training.optimiser = "sgd"'),
    ("fedcat", {"training": {"optimiser": "adam"}}, "ignore training.momentum = 0.9", "set it to 0"),
    ("clusamp", {"objective": {NAME: "dyn"}}, "clusamp may put a device on two tours", "choose another arranger"),
    (
        "clusamp",
        {"objective": {NAME: "mine:Pull"}},
        "mine:Pull keeps a memory between visits",
        'objective.name = "prox"',
    ),
    ("hierfavg", {"objective": {NAME: "dyn"}}, "edge-cloud merges at the edge", 'objective.name = "prox"'),
    (
        "hierfavg",
        {"objective": {NAME: "scaffold"}, "aggregator": {NAME: "scaffold"}},
        "edge-cloud merges at the edge",
        'schedule.name = "every-round"',
    ),
    ("chain", {"objective": {NAME: "dyn"}}, "from the second round on, and ring has one round", "another schedule"),
    ("fedelmy-parallel", {"objective": {NAME: "dyn"}}, "one-shot has one", 'objective.name = "prox"'),
    ("hierfavg", {"arranger": {NAME: "single"}}, "makes sets of one device", 'arranger.name = "site"'),
    (
        "fedelmy",
        {"objective": {"start": "own"}},
        "ring passes one model from tour to tour",
        'objective.start = "received"',
    ),
    (
        "metafed",
        {"schedule": {NAME: "ring", "trips": 3}},
        "schedule ring and the objective common do not fit",
        'schedule.name = "phased-ring"',
    ),
    (
        "metafed",
        {"objective": {NAME: "sgd"}},
        "phased-ring and the objective sgd do not fit",
        'objective.name = "common"',
    ),
    ("metafed", {"objective": {"phase": "begin"}}, "the schedule sets objective.phase", "leave it out"),
    ("metafed", {"objective": {"anchor": "round"}}, "the model of the previous device", "leave objective.anchor out"),
    ("metafed", {"aggregator": {NAME: "adam"}}, "adam would change it again", 'aggregator.name = "uniform-mean"'),
    (
        "metafed",
        {"aggregator": {NAME: "ida"}},
        "phased-ring returns one model",
        'aggregator.name = "weighted-mean"',
    ),
    ("fedcat", {"aggregator": {"window": 5}}, "slots does not merge after each", 'schedule.name = "every-round"'),
    ("fedelmy", {"aggregator": {"window": 2}}, "does not merge after each of several", "leave aggregator.window out"),
    ("fedgen", {"aggregator": {"window": 5}}, "replaces the merged model", "leave aggregator.window out"),
    ("fedfusion", {"aggregator": {"window": 5}}, "fusion replaces the merged model", "leave aggregator.window out"),
    ("visit", {"estimator": {NAME: "none"}}, "none gives none", 'estimator.name = "signature"'),
    ("visit", {"estimator": {NAME: "sizes"}}, "sizes gives none", 'estimator.name = "signature"'),
    ("hiercluster", {"estimator": {NAME: "sizes"}}, "sizes gives none", 'estimator.name = "signature"'),
    ("visit", {"estimator": {NAME: "classifier"}}, "needs one number for each class", '"class-counts"'),
    ("visit", {"estimator": {NAME: "updates"}}, "updates gives other rows", '"confidence"'),
    (
        "fedseq",
        {"arranger": {"grouping": "random"}, "estimator": {NAME: "none"}},
        "number of samples of each device",
        'estimator.name = "sizes"',
    ),
    ("fedseq", {"arranger": {"sets": 9}}, "sets = 9 with size = 0 is incomplete", "set both, or neither"),
    ("fedseq", {"arranger": {"size": 9}}, "sets = 0 with size = 9 is incomplete", "set both, or neither"),
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
    ("hiercluster", {"estimator": {NAME: "updates", "epochs": 0}}, "only the model at its end", "estimator.epochs = 1"),
    ("clusamp", {"schedule": {"passes": 2}}, "after a tour of several visits", "estimator.epochs = 1"),
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
    (
        "fedcat",
        {"schedule": {"rearrange_every": 0}},
        "slots with these settings keeps the first draw",
        "rearrange_every = 1",
    ),
    (
        "fedavg",
        {"arranger": {"fraction": 0.5}, "schedule": {NAME: "ring", "trips": 2}},
        "ring with these settings keeps the first draw",
        'schedule.name = "every-round"',
    ),
    ("fedgsp", {"arranger": {NAME: "fedseq"}}, "fedseq does not accept a number", 'arranger.name = "icg"'),
    ("fedgsp", {"arranger": {NAME: "single"}}, "single does not accept a number", '"random"'),
    ("clusamp", {"aggregator": {NAME: "weighted-mean"}}, "weight them by samples again", '"uniform-mean"'),
    ("clusamp", {"aggregator": {NAME: "yogi"}}, "weight them by samples again", 'aggregator.weighting = "uniform"'),
    ("chain", {"aggregator": {NAME: "ida"}}, "ring returns one model", 'aggregator.name = "weighted-mean"'),
    ("chain", {"aggregator": {NAME: "adam"}}, "the devices' training would be lost", '"weighted-mean"'),
    ("fedelmy-parallel", {"aggregator": {NAME: "adagrad"}}, "adagrad changes each parameter", '"weighted-mean"'),
]
VALID: list[tuple[str, dict[str, dict[str, Any]]]] = [
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


def test_halves_are_named_by_what_they_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prox, "server_half", "dyn")
    monkeypatch.setattr(Prox, "plain_sgd", True)
    texts = objections(mixed("fedavg", objective={NAME: "prox"}, training={"momentum": 0.9}))
    assert [text.rpartition(": set")[0] for text in texts] == [
        "the objective prox is one half of an algorithm: its other half is the aggregator dyn, not weighted-mean",
        "the objective prox needs plain gradients, which momentum and optimisers other than SGD change",
    ]


@pytest.mark.parametrize(
    ("base", "changes", "why", "fix"), INVALID, ids=[f"{base}-{number}" for number, (base, *_) in enumerate(INVALID)]
)
def test_invalid_mix_is_rejected_with_reason_and_fix(
    base: str, changes: dict[str, dict[str, Any]], why: str, fix: str
) -> None:
    sentence = next(each for each in objections(mixed(base, **changes)) if why in each)
    reason, _, fixes = sentence.rpartition(": ")
    assert why in reason
    assert fix in fixes


@pytest.mark.parametrize(("base", "changes"), VALID, ids=[f"{base}-{number}" for number, (base, _) in enumerate(VALID)])
def test_valid_mixes_are_accepted(base: str, changes: dict[str, dict[str, Any]]) -> None:
    assert objections(mixed(base, **changes)) == []


@pytest.mark.parametrize(
    ("base", "changes", "why", "fix"), INVALID, ids=[f"{base}-{number}" for number, (base, *_) in enumerate(INVALID)]
)
def test_suggested_fix_resolves_the_error(base: str, changes: dict[str, dict[str, Any]], why: str, fix: str) -> None:
    strategy = mixed(base, **changes)
    before = next(each for each in objections(strategy) if why in each)
    for each_fix in re.split(r", or |: ", before.rpartition(": ")[2]):
        advice: dict[str, dict[str, Any]] = {}
        for kind, key, value in re.findall(r"(\w+)\.(\w+) = (\"[^\"]+\"|\d+)", each_fix):
            advice.setdefault(kind, {})[key] = json.loads(value)
        if advice:
            after = strategy.changed(advice, "it")
            assert before not in objections(after), each_fix


def test_single_invalid_change_gives_one_error() -> None:
    alone = [(base, changes) for base, changes, *_ in INVALID if len(changes) == 1]
    counts = [len(objections(mixed(base, **changes))) for base, changes in alone]
    assert counts.count(1) >= len(counts) - 2, "one change, one reason"
    assert objection_to(mixed("fedavg", aggregator={NAME: "dyn"})).startswith(
        "the aggregator dyn is one half of an algorithm"
    )


def test_only_weighted_estimate_needs_sample_counts() -> None:
    # All built-in estimators with rows also give sample counts, so the test uses the estimator none.
    fedseq = named("fedseq", "here")
    of_size = {"sets": 9, "size": 4, "grouping": "greedy"}
    for estimate, count in (("weighted-mean", 1), ("mean", 0), ("midpoint", 0)):
        mix = fedseq.changed({"arranger": {**of_size, "estimate": estimate}, "estimator": {NAME: "none"}}, "it")
        assert sum("number of samples" in each for each in objections(mix)) == count


def job(strategy: str, **fields: Any) -> JobSettings:
    return msgspec.convert({"name": "it", "strategy": strategy, **fields}, JobSettings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (job("fedelmy", rounds=5), "the schedule ring has 1: leave rounds out, or set schedule.trips = 5,"),
        (job("fedelmy-few-shot", rounds=1), "rounds = 1, and the schedule ring has 3"),
        (job("fedelmy-parallel", rounds=2), 'one-shot has 1: leave rounds out, or set schedule.name = "every'),
        (job("metafed", rounds=5), "phased-ring has 301: leave rounds out, or set schedule.trips = 3:"),
        (
            job("metafed", task={"kind": "regression"}),
            "by their accuracy, and a task of the kind 'regression'",
        ),
        (job("metafed", target=0.9), "target = 0.9 applies to the job's one model"),
        (job("fedbn", target=0.9), "the result is a model for each device: leave target out"),
        (job("fedbn", model={"batchnorm": "frozen"}), "devices keep their own: leave it out"),
        (job("metafed", model={"batchnorm": "frozen"}, objective={"share_norms": False}), "leave it out, or set it"),
        (job("fedavg", tours={"on_lost_visit": "swap", "spares": 0}), "tours.spares = 0 gives a tour no spare"),
        (job("fedavg", tours={"on_lost_visit": "retry", "retries": 0}), "tours.retries = 0 never retries"),
    ],
)
def test_job_that_contradicts_its_strategy_is_rejected(settings: JobSettings, message: str) -> None:
    assert message in objection_to(settings.parts(), settings)
    assert objections(settings.parts()) == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_job_that_repeats_its_strategy_is_accepted(name: str) -> None:
    rounds = named(name, "here").schedule.fixed_rounds
    for settings in (job(name), job(name, rounds=rounds or 7), job(name, tours={"on_lost_visit": "swap"})):
        assert objections(settings.parts(), settings) == []
    assert job(name).tours == TourSettings()


class Arranges(msgspec.Struct):
    """A custom arranger."""

    depth: int = 1

    def arrange(self) -> None:
        """Do nothing."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of the class in this module, as a job file has it."""
    import sys
    from types import ModuleType

    module = ModuleType("parts_of_mine")
    module.Arranges = Arranges  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "parts_of_mine", module)
    return "parts_of_mine:Arranges"


@pytest.mark.parametrize("kind", ["estimator", "arranger", "schedule", "aggregator"])
def test_custom_coordinator_parts_must_be_installed(kind: str) -> None:
    found = [each for each in objections(mixed("fedavg", **{kind: {NAME: "not.there:Mine"}})) if "not.there" in each]
    assert len(found) == 1
    assert found[0].startswith("not.there:Mine is not installed here")


def test_custom_parts_need_methods_and_known_settings(here: str) -> None:
    assert objections(mixed("fedavg", arranger={NAME: here, "depth": 2})) == []
    assert re.match(
        "parts_of_mine:Arranges lacks the methods depart, merges", objection_to(mixed("fedavg", schedule={NAME: here}))
    )
    assert re.match(
        "parts_of_mine:Arranges lacks the methods aggregate", objection_to(mixed("fedavg", aggregator={NAME: here}))
    )
    assert re.match(
        "parts_of_mine:Arranges lacks the methods estimate", objection_to(mixed("fedavg", estimator={NAME: here}))
    )
    assert "cannot be created with" in objection_to(mixed("fedavg", arranger={NAME: here, "depth": "deep"}))


def test_memory_rejects_custom_arranger_that_repeats_devices(here: str) -> None:
    twice = {NAME: here, "once": False}
    assert "may put a device on two tours at once" in objection_to(mixed("feddyn", arranger=twice))
    assert objections(mixed("feddyn", arranger={NAME: here})) == []
    assert objections(mixed("fedprox", arranger=twice)) == []
    assert objections(mixed("feddyn", arranger=twice, schedule={NAME: "ring", "trips": 2})) == []


def test_deadline_must_not_be_shorter_than_lease() -> None:
    short = job("visit", tours={"lease": 60, "deadline": 59})
    (reason,) = objections(short.parts(), short)
    assert reason.startswith("tours.deadline = 59 ends before a lease of tours.lease = 60 seconds: ")
    for fine in ({"lease": 60, "deadline": 60}, {"lease": 1e6}):
        assert objections(job("visit", tours=fine).parts(), job("visit", tours=fine)) == []
