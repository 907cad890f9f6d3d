"""Tests of the catalogue: each strategy is valid and has its paper's parts; a variant changes only the parts that it
states.
"""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from coordinator import strategies
from coordinator.console.strategy_commands import KINDS, requirements_of, snippet
from coordinator.jobs.compatibility import objections
from coordinator.strategies import STRATEGIES, Named, Strategy, find, named
from coordinator.strategies.strategy import FORMS
from sojourn import parts
from sojourn.errors import ConfigError

NAMES = [
    "visit", "keel", "hiercluster", "fedavg", "fedavgm", "fedprox", "fedmmd", "moon", "fedfusion", "fedgen",
    "scaffold", "feddyn",
    "fedadagrad", "fedadam", "fedyogi", "ida", "hierfavg", "clusamp", "fedseq", "fedseq-prox", "fedseq-dyn",
    "fedseq-inter", "fedseq-inter-prox", "fedseq-inter-dyn", "fedgsp", "naive-gsp", "naive-gsp-icg", "fedcat",
    "fedcat-gc", "fedcat-dc", "fedelmy", "fedelmy-few-shot", "fedelmy-parallel", "chain", "dfedavgm", "dfedsam",
    "fedbn", "metafed", "dense", "ma-echo", "fedov",
]  # fmt: skip
VARIANTS = {
    ("fedavgm", "fedavg"): {"aggregator"},
    ("fedprox", "fedavg"): {"objective", "training"},
    ("fedmmd", "fedavg"): {"objective", "training"},
    ("moon", "fedavg"): {"objective", "training"},
    ("fedfusion", "fedavg"): {"objective", "aggregator", "training"},
    ("scaffold", "fedavg"): {"objective", "aggregator"},
    ("feddyn", "fedavg"): {"objective", "aggregator", "training"},
    ("fedadagrad", "fedavg"): {"aggregator", "training"},
    ("fedadam", "fedadagrad"): {"aggregator"},
    ("fedyogi", "fedadam"): {"aggregator"},
    ("ida", "fedavg"): {"aggregator"},
    ("hierfavg", "fedavg"): {"arranger", "schedule", "training"},
    ("clusamp", "fedavg"): {"estimator", "arranger", "aggregator"},
    ("dfedavgm", "fedavg"): {"aggregator", "training"},
    ("dfedsam", "dfedavgm"): {"objective"},
    ("hiercluster", "visit"): {"arranger"},
    ("fedseq-prox", "fedseq"): {"objective"},
    ("fedseq-dyn", "fedseq"): {"objective", "aggregator"},
    ("fedseq-inter", "fedseq"): {"schedule"},
    ("fedseq-inter-prox", "fedseq-inter"): {"objective"},
    ("fedseq-inter-dyn", "fedseq-inter"): {"objective", "aggregator"},
    ("naive-gsp-icg", "fedgsp"): {"schedule"},
    ("naive-gsp", "naive-gsp-icg"): {"estimator", "arranger"},
    ("fedcat-gc", "fedcat"): {"schedule"},
    ("fedcat-dc", "fedcat"): {"arranger"},
    ("fedelmy-few-shot", "fedelmy"): {"schedule"},
    ("fedelmy-parallel", "fedelmy"): {"arranger", "schedule", "objective", "aggregator"},
    ("chain", "fedelmy"): {"objective"},
    ("fedbn", "fedavg"): {"objective", "aggregator", "training"},
    ("dense", "fedavg"): {"schedule", "aggregator", "finisher", "training"},
    ("ma-echo", "dense"): {"objective", "finisher", "training"},
    ("fedov", "dense"): {"objective", "finisher", "training"},
    ("metafed", "chain"): {"arranger", "schedule", "objective", "aggregator", "training"},
}
TRAINING = {
    "fedprox": parts.Training(epochs=20, batch=10),
    "fedmmd": parts.Training(epochs=2, batch=128, lr=2e-3),
    "moon": parts.Training(epochs=10, batch=64, lr=0.01, momentum=0.9, weight_decay=1e-5),
    "fedfusion": parts.Training(epochs=5, batch=64, lr=5e-3, momentum=0.9, weight_decay=5e-4),
    "feddyn": parts.Training(epochs=5, batch=50, lr=0.1, weight_decay=1e-3),
    "fedseq": parts.Training(lr=0.01, weight_decay=4e-4, batch=64),
    "fedgsp": parts.Training(lr=0.01, batch=5),
    "fedcat": parts.Training(lr=0.01, batch=50, epochs=5, momentum=0.9),
    "fedelmy": parts.Training(lr=1e-3, batch=128, epochs=200, optimiser="adam", weight_decay=1e-4),
    "fedbn": parts.Training(lr=0.01, batch=32, epochs=1),
    "metafed": parts.Training(lr=0.01, batch=32, epochs=1),
    "dense": parts.Training(lr=0.01, momentum=0.9, batch=128, epochs=200),
    "ma-echo": parts.Training(lr=0.01, momentum=0.5, batch=64, epochs=10),
    "fedov": parts.Training(lr=1e-3, optimiser="adam", weight_decay=1e-5, batch=64, epochs=200),
    "dfedsam": parts.Training(lr=0.1, batch=128, epochs=5, momentum=0.9, weight_decay=5e-4),
}


def differing(one: Strategy, other: Strategy) -> set[str]:
    return {kind for kind in KINDS if getattr(one, kind) != getattr(other, kind)}


def test_all_strategies_are_registered() -> None:
    assert list(STRATEGIES) == NAMES


def test_every_strategy_module_is_listed() -> None:
    files = {file.stem for file in Path(str(strategies.__file__)).parent.glob("*.py")}
    modules = [import_module(f"coordinator.strategies.{file}") for file in files - {"__init__"}]
    defined = {each.name for module in modules for each in vars(module).values() if isinstance(each, Named)}
    assert defined == set(NAMES)


@pytest.mark.parametrize("each", STRATEGIES.values(), ids=lambda each: each.name)
def test_each_strategy_is_valid_and_cites_its_paper(each: Named) -> None:
    assert objections(each.strategy) == []
    assert re.fullmatch(r'[^"]+: "[^"]+", [^"]*\b(19|20)\d\d\.', each.paper.replace("\n", " ")), each.paper
    assert len(each.title.split("\n")) == 1
    assert 20 <= len(each.summary) <= 61, "the list fits 80 columns"
    assert re.search(r"\b([Ll]ost|Failures|fail)\b", each.text), "the text describes failures"


@pytest.mark.parametrize("each", STRATEGIES.values(), ids=lambda each: each.name)
def test_names_in_strategy_text_exist(each: Named) -> None:
    known = {*NAMES, "lr", "epochs", "trips", "sets", "size", "edge_merges", "rearrange_every"}
    for code in re.findall(r"`([^`]+)`", each.text.replace("\n", " ")):
        if code not in known:
            assert "=" in code, code
            key, value = (side.strip() for side in code.split("="))
            fields = {field.name for forms in FORMS.values() for form in forms.values() for field in fields_of(form)}
            assert key.rpartition(".")[2] in fields | {"name"}, code
            if key.endswith(".name"):
                assert value.strip('"') in FORMS[key.removesuffix(".name")], code


def fields_of(form: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(form)


@pytest.mark.parametrize("each", STRATEGIES.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("base", ["visit", "fedavg", "fedseq-inter"])
def test_snippet_gives_same_strategy_over_any_base(each: Named, base: str) -> None:
    table = tomllib.loads(snippet(each))
    assert table.pop("strategy") == each.name
    assert set(table) == set(KINDS)
    assert named(base, "here").changed(table, "it") == each.strategy


@pytest.mark.parametrize(("pair", "kinds"), VARIANTS.items(), ids=lambda value: "-".join(sorted(value)))
def test_variant_differs_only_in_its_own_parts(pair: tuple[str, str], kinds: set[str]) -> None:
    one, other = pair
    assert differing(named(one, "here"), named(other, "here")) == kinds


def test_all_strategies_differ() -> None:
    seen = [each.strategy for each in STRATEGIES.values()]
    assert all(seen.count(each) == 1 for each in seen)


@pytest.mark.parametrize(("name", "training"), TRAINING.items())
def test_training_settings_match_the_papers(name: str, training: parts.Training) -> None:
    assert named(name, "here").training == training


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("fedprox", "objective", parts.Prox(mu=0.01)),
        ("fedmmd", "objective", parts.Mmd(weight=0.1, layer="logits", distance="mmd", floor=1e-4)),
        ("moon", "objective", parts.Moon(mu=5.0, tau=0.5, projection=256)),
        ("fedfusion", "objective", parts.Fusion(operator="multi", evaluate="fused")),
        ("fedfusion", "aggregator", parts.FusionMean(smoothing=0.9, weighting="uniform")),
        ("feddyn", "objective", parts.Dyn(a=0.01)),
        ("fedavgm", "aggregator", parts.AvgM(momentum=0.9, lr=1.0)),
        ("fedadam", "aggregator", parts.Adam(lr=0.01)),
        ("hierfavg", "schedule", parts.EdgeCloud(edge_merges=2)),
        ("clusamp", "estimator", parts.UpdateEstimator(epochs=0)),
        ("clusamp", "aggregator", parts.UniformMean()),
        ("fedseq", "arranger", parts.FedSeqArranger(grouping="greedy", tau="kl", min_samples=800, max_devices=11)),
        ("fedseq", "schedule", parts.EveryRound(rearrange_every=0, fraction=0.2, order="shuffled")),
        ("fedseq-prox", "objective", parts.Prox(mu=0.01)),
        ("fedseq-dyn", "objective", parts.Dyn(a=0.1)),
        ("fedseq-inter", "schedule", parts.Slots(merge_every=0, fraction=0.2, order="shuffled")),
        ("fedseq-inter-prox", "objective", parts.Prox(mu=1.0)),
        ("fedseq-inter-dyn", "objective", parts.Dyn(a=1.0)),
        ("fedgsp", "schedule", parts.SequentialToParallel(growth="log", alpha=2, beta=10, kappa=0.3)),
        ("naive-gsp", "schedule", parts.EveryRound(rearrange_every=0, fraction=0.3, order="shuffled")),
        ("fedcat", "schedule", parts.Slots(rotate=True, rearrange_every=1)),
        ("fedcat-dc", "arranger", parts.FedCatArranger(grouped=False)),
        ("fedelmy", "objective", parts.Elmy(models=5, alpha=0.06, beta=1, warmup=30, validation=0.1)),
        ("dfedsam", "objective", parts.Sam(rho=0.01)),
    ],
)
def test_parts_match_the_papers(name: str, kind: str, part: parts.Part) -> None:
    assert getattr(named(name, "here"), kind) == part


def test_unknown_strategy_suggests_nearest() -> None:
    with pytest.raises(ConfigError, match=r"job.toml: there is no strategy 'fedsek'; did you mean 'fedseq'\?"):
        named("fedsek", "job.toml")
    assert find("fedseq", "here").strategy == named("fedseq", "here")


def test_changed_field_keeps_the_others() -> None:
    changed = named("fedseq", "here").changed({"arranger": {"max_devices": 5}, "training": {"lr": 0.1}}, "it")
    assert changed.arranger == parts.FedSeqArranger(max_devices=5)
    assert changed.training == parts.Training(lr=0.1, weight_decay=4e-4, batch=64)
    assert differing(changed, named("fedseq", "here")) == {"arranger", "training"}


def test_swapped_part_starts_from_its_own_defaults() -> None:
    changed = named("fedseq-inter", "here").changed({"schedule": {"name": "every-round", "passes": 2}}, "it")
    assert changed.schedule == parts.EveryRound(passes=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arranger": {"name": "vist"}}, r"it: there is no arranger 'vist'; did you mean 'visit'\?"),
        ({"arranger": {"name": ["visit"]}}, r"it: there is no arranger \['visit'\]"),
        ({"arranger": {"fracton": 0.5}}, r"it: unknown key 'fracton' in \[arranger\]; did you mean 'fraction'\?"),
        (
            {"objective": {"mu": 0.5}},
            r"it: unknown key 'mu' in \[objective\]; sgd does not have it, prox or moon does: set objective.name",
        ),
        ({"training": {"momentun": 0.5}}, r"it: unknown key 'momentun' in \[training\]; did you mean 'momentum'\?"),
        ({"arranger": {"fraction": 2}}, "it: arranger.fraction: expected `float` <= 1.0"),
    ],
)
def test_invalid_change_reports_reason(changes: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        named("fedavg", "here").changed(changes, "it")


def test_custom_parts_are_named_by_class_with_settings() -> None:
    changes = {
        "objective": {"name": "mine.parts:Pull", "mu": 0.1, "epochs": 3},
        "estimator": {"name": "mine.parts:Rows", "epochs": 3, "depth": 2},
    }
    changed = named("fedavg", "here").changed(changes, "it")
    assert changed.objective == parts.OwnObjective(part="mine.parts:Pull", settings={"mu": 0.1, "epochs": 3})
    assert changed.estimator == parts.OwnEstimator(part="mine.parts:Rows", epochs=3, settings={"depth": 2})


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("naive-gsp", []),
        ("fedavg", ["sample counts: the number"]),
        ("fedgsp", ["class counts"]),
        ("visit", ["one more visit for each device, of 10 epochs", "exemplars", "sample counts"]),
        ("clusamp", ["sample counts: each device", "updates"]),
        ("scaffold", ["memory for a control variate"]),
        ("feddyn", ["memory for one vector"]),
        ("fedmmd", ["1 frozen model in addition", "sample counts"]),
        ("moon", ["2 frozen models in addition", "memory for one model", "sample counts"]),
        ("fedfusion", ["1 frozen model in addition"]),
        ("fedelmy", ["memory for 7 models"]),
        ("dfedsam", ["two gradients"]),
    ],
)
def test_device_requirements_are_listed(name: str, required: list[str]) -> None:
    listed = requirements_of(named(name, "here"))
    assert len(listed) == len(required)
    assert all(line.startswith(start) for line, start in zip(listed, required, strict=True))


def test_requirements_name_custom_objective_and_sent_exemplars() -> None:
    changes = {"objective": {"name": "mine.parts:Pull"}, "estimator": {"where": "device"}}
    listed = requirements_of(named("visit", "here").changed(changes, "it"))
    assert "mine.parts:Pull installed on each device, and its owner's permission to run it" in listed
    assert "exemplars: a few public labelled samples of each class, sent to devices" in listed
    sizes = named("naive-gsp", "here").changed({"estimator": {"name": "sizes"}}, "it")
    assert requirements_of(sizes) == [
        "sample counts: each device reports its number before the first round; this trains nothing"
    ]
