"""A whole site with a bad link and kill -9: waves and sums equal plain numpy, bit for bit."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from sojourn.links.memory import Faults
from sojourn.node import node as node_module
from sojourn.parts import Scaffold, TourPolicy
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.wire import VisitReport
from sojourn.randomness import derive
from sojourn.store.memory_blobs import MemoryBlobs
from tests.hierarchy.edge.led_site import CLOUD, DEVICES, EDGE, SAMPLES, SEED, START, LedSite, extra, shift, task_of
from tests.there import there

MERGES = 3
BAD = Faults(loss=0.2, repeat=0.2, delay=0.01, spread=0.5, seed=3)


@pytest.fixture(autouse=True, params=[0, 16 << 10], ids=["pulled", "inline"])
def inline(request, monkeypatch) -> None:
    """Blobs are fetched, or inlined in messages."""
    monkeypatch.setattr(node_module, "INLINE", request.param)


def mean(models: list[np.ndarray], weights: list[int]) -> np.ndarray:
    total = np.zeros(len(START))
    for model, weight in zip(models, weights, strict=True):
        total += model.astype(np.float64) * (weight / sum(weights))
    return total.astype(np.float32)


def merged(missing: tuple[tuple[int, str], ...] = (), merges: int = MERGES, *, uniform: bool = False) -> np.ndarray:
    """Return the model after waves that are each the mean of single visits, without the missing ones."""
    w = START
    for wave in range(merges):
        here = [name for name in DEVICES if (wave, name) not in missing]
        models = [w + shift(name, derive(SEED, name, wave)) for name in here]
        if here:
            w = mean(models, [1 if uniform else SAMPLES[name] for name in here])
    return w


def merged_float16() -> np.ndarray:
    """Return the same if models and differences are sent as float16; the result is a difference to the start."""
    start = START.astype(np.float16).astype(np.float32)
    w = handed = start
    for wave in range(MERGES):
        changes = [(handed + shift(name, derive(SEED, name, wave))) - handed for name in DEVICES]
        w = mean([w + it.astype(np.float16).astype(np.float32) for it in changes], list(SAMPLES.values()))
        handed = w.astype(np.float16).astype(np.float32)
    return (w - start).astype(np.float16).astype(np.float32)


def ended(site: LedSite) -> list[VisitReport]:
    toured = site.run()
    return unpack_blob(site.nodes[CLOUD.name].node.store.blobs.read(toured.reports.digest), list[VisitReport])


def check_waves(site: LedSite, expected: np.ndarray) -> None:
    """Check the tour's final model, and that every visit was trained once and kept once."""
    reports = ended(site)
    assert np.array_equal(site.vector(), expected)
    visits = len(DEVICES) * MERGES
    assert sorted(report.hop for report in reports) == list(range(visits))
    assert there(site.leader.toured).samples == sum(SAMPLES.values())
    assert site.kept == dict.fromkeys(range(visits), 1)
    assert site.finished == {(DEVICES[hop % len(DEVICES)], hop): 1 for hop in range(visits)}


@pytest.mark.parametrize("faults", [None, BAD], ids=["clean", "bad"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_waves_equal_means_of_single_visits(faults, weighting) -> None:
    site = LedSite(task_of(), faults, merges=MERGES, weighting=weighting)
    check_waves(site, merged(uniform=weighting == "uniform"))


def test_every_wave_setting_changes_the_model() -> None:
    models = [merged(), merged(uniform=True), merged(merges=1), merged(((0, "dev-1"),)), merged(((2, "dev-1"),))]
    assert len({model.tobytes() for model in models}) == len(models)


@pytest.mark.parametrize("faults", [None, BAD], ids=["clean", "bad"])
def test_compressed_waves_keep_the_exact_model_at_the_edge(faults) -> None:
    check_waves(LedSite(task_of(encoding="float16"), faults, merges=MERGES), merged_float16())


def test_one_merge_equals_fedavg() -> None:
    site = LedSite(task_of(), merges=1)
    ended(site)
    single = [START + shift(name, derive(SEED, name, 0)) for name in DEVICES]
    assert np.array_equal(site.vector(), mean(single, list(SAMPLES.values())))


@pytest.mark.parametrize("faults", [None, BAD], ids=["clean", "bad"])
def test_device_that_fails_in_one_wave_joins_the_next(faults) -> None:
    site = LedSite(task_of(), faults, fails={"dev-1": 1, "dev-3": 2}, merges=MERGES)
    reports = ended(site)
    assert np.array_equal(site.vector(), merged(((0, "dev-1"), (0, "dev-3"), (1, "dev-3"))))
    assert sorted(site.missed) == ["dev-1", "dev-3", "dev-3"]
    assert len(reports) == len(DEVICES) * MERGES
    assert there(site.leader.toured).samples == sum(SAMPLES.values())


def test_wave_without_results_keeps_the_model() -> None:
    site = LedSite(task_of(), fails=dict.fromkeys(DEVICES, 1), merges=MERGES)
    ended(site)
    assert np.array_equal(site.vector(), merged(tuple((0, name) for name in DEVICES)))


def test_retry_in_a_wave_yields_the_same_model() -> None:
    policy = TourPolicy(lease=2000.0, on_lost_visit="retry", retries=2)
    site = LedSite(task_of(), BAD, fails={"dev-0": 2, "dev-2": 1}, merges=MERGES, policy=policy)
    ended(site)
    assert np.array_equal(site.vector(), merged())
    assert sorted(site.missed) == ["dev-0", "dev-0", "dev-2"]


def test_lost_device_costs_only_its_visits() -> None:
    site = LedSite(task_of(), merges=MERGES, policy=TourPolicy(lease=20.0))
    site.kill("dev-2")
    ended(site)
    assert np.array_equal(site.vector(), merged(tuple((wave, "dev-2") for wave in range(MERGES))))
    assert there(site.leader.toured).samples == sum(SAMPLES.values()) - SAMPLES["dev-2"]


@cache
def events_of(inline: int) -> int:
    site = LedSite(task_of(), merges=MERGES)
    site.run()
    return site.world._count


@pytest.mark.parametrize("pause", [0.03, 4.0])
@pytest.mark.parametrize("name", [EDGE.name, "dev-1"])
def test_kill_during_a_wave_yields_the_same_model(name, pause) -> None:
    for moment in range(1, events_of(node_module.INLINE), 17):
        site = LedSite(task_of(), merges=MERGES)
        site.after(moment)
        site.kill(name)
        site.wait(pause)
        site.start(name)
        check_waves(site, merged())


@pytest.mark.parametrize("seed", range(15))
def test_kills_over_a_bad_link_yield_the_same_model(seed, monkeypatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(node_module, "RECORDS_PER_SNAPSHOT", draw.choice([1, 5, 512]))
    monkeypatch.setattr(node_module, "SECONDS_PER_SWEEP", draw.choice([0.5, 30.0]))
    site = LedSite(task_of(), Faults(0.2, 0.2, 0.01, draw.random(), seed), merges=MERGES)
    for _ in range(draw.randint(2, 8)):
        site.after(draw.randint(1, 150))
        down = draw.sample((EDGE.name, *DEVICES), draw.randint(1, 3))
        for name in down:
            site.kill(name)
        site.wait(draw.choice([0.0, 0.1, 2.0, 20.0]))
        for name in down:
            site.start(name)
    check_waves(site, merged())


def test_blobs_of_a_finished_wave_tour_are_swept(monkeypatch) -> None:
    monkeypatch.setattr(node_module, "SECONDS_PER_SWEEP", 0.1)
    site = LedSite(task_of(), merges=MERGES)
    ended(site)
    site.wait(60)
    edge = site.nodes[EDGE.name].node
    edge.tick(site.world.now)
    assert site.edge.state.tours == {}
    assert isinstance(edge.store.blobs, MemoryBlobs)
    assert set(edge.store.blobs._blobs) <= set(site.edge.live())


HOPS = ("dev-2", "dev-0", "dev-2", "dev-3")


def led_along(hops=HOPS) -> tuple[np.ndarray, np.ndarray]:
    """Return the model after the tour, and the sum of the additional vectors, rounded after every visit."""
    w, seen = START, list[str]()
    total: np.ndarray | None = None
    for name in hops:
        seed = derive(SEED, name, seen.count(name))
        w, more = w + shift(name, seed), extra(name, seed)
        total = more if total is None else (total.astype(np.float64) + more.astype(np.float64)).astype(np.float32)
        seen.append(name)
    return w, there(total)


@pytest.mark.parametrize("faults", [None, BAD], ids=["clean", "bad"])
def test_sums_of_extra_vectors_arrive_with_the_model(faults) -> None:
    site = LedSite(task_of(objective=Scaffold()), faults, hops=HOPS)
    ended(site)
    w, total = led_along()
    assert np.array_equal(site.vector(), w)
    assert np.array_equal(site.vector("control_delta"), total)
    assert there(site.leader.toured).vectors.keys() == {"model", "control_delta"}


def test_lost_visit_is_excluded_from_the_sum() -> None:
    site = LedSite(task_of(objective=Scaffold()), BAD, fails={"dev-0": 1}, hops=HOPS)
    ended(site)
    _, total = led_along(("dev-2", "dev-2", "dev-3"))
    assert np.array_equal(site.vector("control_delta"), total)


@pytest.mark.parametrize("name", [EDGE.name, "dev-2"])
def test_kill_never_adds_an_extra_vector_twice(name) -> None:
    whole = LedSite(task_of(objective=Scaffold()), hops=HOPS)
    whole.run()
    w, total = led_along()
    for moment in range(2, whole.world._count, 13):
        site = LedSite(task_of(objective=Scaffold()), hops=HOPS)
        site.after(moment)
        site.kill(name)
        site.wait(1.0)
        site.start(name)
        ended(site)
        assert np.array_equal(site.vector(), w)
        assert np.array_equal(site.vector("control_delta"), total)
        assert set(site.finished.values()) == {1}
