"""Whole jobs against the papers' pseudo-code written out in plain numpy: same plan, same randomness, same model.

The devices of each tour are read from the plan (the arrangers have separate tests); everything else is computed here.
"""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.randomness import batches, derive
from tests.fleet_sim.small_fleet import job, kit_of_jobs, run
from tests.fleet_sim.written_out import (
    BATCH,
    EPOCHS,
    LR,
    PLAIN,
    N,
    check_agrees,
    ran,
    ready,
    scaffold_round,
    size,
    start,
    tour,
    train,
    uniform,
    weighted,
)


def test_fedprox_pulls_towards_the_received_model() -> None:
    done, plans = ran("fedprox", objective__mu=0.7)
    w = start()
    for number, tours in enumerate(plans, 1):
        anchor = w
        ends = [train(w, t.hops[0], number, lambda v, g, a=anchor: g + 0.7 * (v - a))[0] for t in tours]
        w = weighted([(end, size(t.hops[0])) for end, t in zip(ends, tours, strict=True)])
    check_agrees(done, w)


def test_scaffold_with_half_the_devices_matches_pseudo_code() -> None:
    done, plans = ran("scaffold", arranger__fraction=0.5, rounds=4)
    w, c = start(), np.zeros_like(start())
    mine: dict[str, np.ndarray] = {}
    for number, tours in enumerate(plans, 1):
        w, c = scaffold_round(w, c, mine, number, [t.hops[0] for t in tours])
    check_agrees(done, w)
    assert len(mine) > 3
    np.testing.assert_allclose(c, sum(mine.values()) / N, rtol=0, atol=1e-12)


def test_feddyn_with_half_the_devices_matches_pseudo_code() -> None:
    a = 0.3
    done, plans = ran("feddyn", objective__a=a, arranger__fraction=0.5, rounds=4)
    w, h = start(), np.zeros_like(start())
    mine: dict[str, np.ndarray] = {}
    for number, tours in enumerate(plans, 1):
        ends = []
        for t in tours:
            k, w_in = t.hops[0], w
            h_k = mine.get(k, np.zeros_like(w))
            w_k, _ = train(w, k, number, lambda v, g, h_k=h_k, w_in=w_in: g - h_k + a * (v - w_in))
            mine[k] = h_k - a * (w_k - w_in)
            ends.append(w_k)
        h = h - a / N * sum(end - w for end in ends)
        w = uniform(ends) - h / a
    check_agrees(done, w)
    np.testing.assert_allclose(h, sum(mine.values()) / N, rtol=0, atol=1e-12)


SEQ = {"estimator__epochs": 1, "arranger__min_samples": 100, "arranger__max_devices": 2}


def test_fedseq_shuffles_superclients_and_weighs_by_samples() -> None:
    done, plans = ran("fedseq", one_broker=True, **SEQ, schedule__fraction=0.7, schedule__passes=2)
    assert all(len(tours) == 2 for tours in plans)
    w = start()
    for number, tours in enumerate(plans, 1):
        w = weighted([tour(w, t.hops, number) for t in tours])
    check_agrees(done, w)


def test_fedseq_inter_keeps_slots_until_all_had_a_turn() -> None:
    done, plans = ran("fedseq-inter", one_broker=True, **SEQ, schedule__fraction=0.7, rounds=5)
    superclients = len({frozenset(t.hops) for tours in plans for t in tours})
    assert superclients == 3
    w = start()
    slots: dict[int, tuple[np.ndarray, float]] = {}
    for t, tours in enumerate(plans):
        for i, each in enumerate(tours):
            w_i, seen = slots.get(i, (w, 0.0))
            w_i, more = tour(w_i, each.hops, t + 1)
            slots[i] = w_i, seen + more
        evaluated = weighted(list(slots.values()))
        if (t + 1) % superclients == 0:
            w, slots = evaluated, {}
    check_agrees(done, evaluated)


def test_fedseq_dyn_pulls_to_predecessor_with_feddyn_server() -> None:
    a = 0.5
    done, plans = ran("fedseq-dyn", one_broker=True, **SEQ, objective__a=a, schedule__fraction=1.0)
    w, h = start(), np.zeros_like(start())
    mine: dict[str, np.ndarray] = {}
    for number, tours in enumerate(plans, 1):
        ends = []
        for t in tours:
            v = w
            for k in t.hops:
                h_k, w_in = mine.get(k, np.zeros_like(w)), v
                v, _ = train(w_in, k, number, lambda u, g, h_k=h_k, w_in=w_in: g - h_k + a * (u - w_in))
                mine[k] = h_k - a * (v - w_in)
            ends.append(v)
        h = h - a / N * sum(end - w for end in ends)
        w = uniform(ends) - h / a
    check_agrees(done, w)
    np.testing.assert_allclose(h, sum(mine.values()) / N, rtol=0, atol=1e-12)


def test_fedgsp_merges_a_share_of_growing_groups_uniformly() -> None:
    done, plans = ran("fedgsp", one_broker=True, schedule__beta=1, schedule__kappa=0.5, rounds=4)
    w = start()
    for number, tours in enumerate(plans, 1):
        w = uniform([tour(w, t.hops, number)[0] for t in tours])
    check_agrees(done, w)
    # f(r) = 1, 2, 3, 3 groups of all six, half of which train.
    assert [[len(t.hops) for t in tours] for tours in plans] == [[6], [3], [2, 2], [2, 2]]


def test_fedcat_rotates_copies_and_merges_after_a_cycle() -> None:
    copies = 3
    done, plans = ran("fedcat", arranger__sets=copies, rounds=5)
    w = start()
    held: list[tuple[np.ndarray, float]] = []
    for r, tours in enumerate(plans):
        j = r % copies
        if j == 0:
            held = [(w, 0.0)] * copies
        # The plan lists tours by copy: copy i is at the device that group (i + j) mod K sent.
        assert [t.slot for t in tours] == [f"slot-{i}" for i in range(copies)]
        for i, t in enumerate(tours):
            model, seen = held[i]
            model, more = tour(model, t.hops, r + 1)
            held[i] = model, seen + more
        if j == copies - 1 or r == len(plans) - 1:
            w = weighted(held)
    check_agrees(done, w)
    groups = [[t.hops[0] for t in tours] for tours in plans[:copies]]
    unrolled = [[row[(g - j) % copies] for g in range(copies)] for j, row in enumerate(groups)]
    by_group = [{row[g] for row in unrolled} for g in range(copies)]
    assert sum(len(group) for group in by_group) == len(set().union(*by_group))


def test_chain_visits_all_devices_of_all_sites_once() -> None:
    done, ((one, two),) = ran("chain", rounds=None)
    assert sorted(one.hops + two.hops) == [f"dev-{n}" for n in range(6)]
    assert (one.leg, two.leg) == (0, 1)
    check_agrees(done, tour(start(), one.hops + two.hops, 1)[0])
    assert done.state.history[0].visits == 6


def test_chain_equals_visit_with_one_set_of_all_devices() -> None:
    whole = {"site-a": tuple(f"dev-{n}" for n in range(4))}
    plain = {**PLAIN, "fleet__devices": 4}
    done = run(job(strategy="visit", **plain, rounds=1, arranger__sets=1, arranger__size=4, estimator__epochs=1), whole)
    (order,) = done.state.arranged
    chained = tour(start(), order.devices, 1)[0]
    np.testing.assert_allclose(done.model, chained, rtol=0, atol=1e-5)


def test_hierfavg_merges_at_the_edges_then_in_the_cloud() -> None:
    merges = 3
    done, plans = ran("hierfavg", schedule__edge_merges=merges, rounds=2)
    w = start()
    for number, tours in enumerate(plans, 1):
        edges = []
        for t in tours:
            edge = w
            for wave in range(merges):
                ends = [(train(edge, k, number, repeat=wave)[0], size(k)) for k in t.hops]
                edge = weighted(ends)
            edges.append((edge, sum(size(k) for k in t.hops)))
        w = weighted(edges)
    check_agrees(done, w)


def test_one_edge_merge_equals_fedavg() -> None:
    once, plain = ran("hierfavg", schedule__edge_merges=1)[0], ran("fedavg")[0]
    np.testing.assert_allclose(once.model, plain.model, rtol=0, atol=1e-6)


def test_dfedsam_steps_along_the_worst_neighbour_gradient() -> None:
    done, plans = ran("dfedsam", objective__rho=0.05, rounds=2)
    w = start()
    for number, tours in enumerate(plans, 1):
        w = uniform([_sam(w, t.hops[0], number, 0.05) for t in tours])
    check_agrees(done, w)


def _sam(w_in: np.ndarray, device: str, number: int, rho: float) -> np.ndarray:
    it, w = ready(device), w_in.astype(np.float64)
    for index in batches(derive(derive(0, "train", number), device, 0), size(device), BATCH, EPOCHS):
        x, y = it.samples.batch(index, kit_of_jobs().input.dtype)
        g = it.graphs.loss_and_gradient(w.astype(np.float32), x, y, [])[1].astype(np.float64)
        worst = w + rho * g / np.linalg.norm(g)
        w = w - LR * it.graphs.loss_and_gradient(worst.astype(np.float32), x, y, [])[1]
    return w


@pytest.mark.parametrize("name", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_server_optimisers_keep_moments_between_rounds(name: str) -> None:
    done, plans = ran(name, aggregator__lr=0.5)
    w = start()
    m = np.zeros_like(w)
    v = np.full_like(w, 1e-6)
    for number, tours in enumerate(plans, 1):
        d = weighted([tour(w, t.hops, number) for t in tours]) - w
        match name:
            case "fedavgm":
                m = 0.9 * m + d
                w = w + 0.5 * m
                continue
            case "fedadagrad":
                m, v = d, v + d**2
            case "fedadam":
                m, v = 0.9 * m + 0.1 * d, 0.99 * v + 0.01 * d**2
            case "fedyogi":
                m, v = 0.9 * m + 0.1 * d, v - 0.01 * d**2 * np.sign(v - d**2)
        w = w + 0.5 * m / (np.sqrt(v) + 1e-3)
    check_agrees(done, w)


def calibrated(w: np.ndarray, device: str, number: int) -> np.ndarray:
    """A visit of KEEL: the gradient is computed with the last layer's bias (ten parameters) shifted by log p."""
    it = ready(device)
    shares = np.bincount(it.samples.y, minlength=10) + 1.0
    shift = np.concatenate([np.zeros(len(w) - 10), np.log(shares / shares.sum())])
    for index in batches(derive(derive(0, "train", number), device, 0), size(device), BATCH, EPOCHS):
        x, y = it.samples.batch(index, kit_of_jobs().input.dtype)
        w = w - LR * it.graphs.loss_and_gradient((w + shift).astype(np.float32), x, y, [])[1].astype(np.float64)
    return w


def test_keel_matches_its_pseudo_code() -> None:
    done, plans = ran("keel", arranger__sets=3, arranger__size=2, rounds=9)
    w, v, braked = start(), np.zeros_like(start()), 0
    mean = w
    for number, tours in enumerate(plans, 1):
        ends = []
        for plan in tours:
            end = w
            for device in plan.hops:
                end = calibrated(end, device, number)
            ends.append((end, sum(map(size, plan.hops))))
        d = weighted(ends) - w
        against = sum(((end - w) * v < 0).astype(int) for end, _ in ends)
        turned = (d * v < 0) & (against >= 2)  # four fifths of three tours, rounded down
        braked += turned.sum()
        v = np.where(turned, d, 0.9 * v + d)
        w = w + v
        mean = mean + (w - mean) / max(1, min(10, number // 4))
    assert braked > len(w)  # more than a ninth of all parameters in a round
    off = np.abs(done.model - mean) > 1e-4
    assert off.mean() < 0.002  # one that was constant except for rounding may change sign in one implementation only
    assert np.abs(mean - w).max() > 0.01
