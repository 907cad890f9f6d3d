"""FedSeq's superclients: groups of dissimilar devices.

Zaccone, Rizzardi, Caldarola, Ciccone, Caputo: "Speeding up Heterogeneous Federated Learning with Sequentially Trained
Superclients", Algorithms 2 and 3. A superclient closes with |D_S|min samples or K_S,max devices. If devices run out
before the last one closes, its devices join, one after another, the superclient that has the fewest devices (then the
fewest samples, then the first made), which keeps K_S,max as far as possible; if there is no other, it stays.

With `sets` and `size` there are exactly `sets` superclients of that size instead, as in VISIT's tables; too few devices
make them of level size. Ties in tau go to the lowest number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from hierarchy.arranging.pools import level
from hierarchy.arranging.rows import as_distributions, tau
from sojourn.errors import Fault
from sojourn.parts import FedSeqArranger
from sojourn.randomness import derive, generator

Rows = NDArray[np.float64]
Samples = NDArray[np.int64]

Picker = Callable[[list[int]], int]
"""Picks the next device for a superclient with these members."""
TIE = 1e-12
"""Metrics this close are equal: the summation order of a machine must not decide."""
RESTARTS = 10
"""How often k-means is restarted; the tightest clusters are kept."""


@dataclass(frozen=True, eq=False)
class KnownDevices:
    """The known data of the devices: a row and a sample count for each, where needed."""

    devices: int
    rows: Rows | None = None
    samples: Samples | None = None
    classes: int | None = None
    """The number of classes, if the columns of the rows are not classes."""


def fedseq_groups(settings: FedSeqArranger, known: KnownDevices, sets: int, seed: int) -> list[list[int]]:
    """Return superclients of the numbers below `known.devices`; `sets` of them if the settings have a size."""
    pick = _picker(settings, known, seed)
    if not settings.size:
        return _superclients(settings, known, pick)
    groups: list[list[int]] = []
    for size in level(known.devices, sets, settings.size):
        groups.append([])
        while len(groups[-1]) < size:
            groups[-1].append(pick(groups[-1]))
    return groups


def _superclients(settings: FedSeqArranger, known: KnownDevices, pick: Picker) -> list[list[int]]:
    """Return superclients of all devices that close by sample or device count."""
    if known.samples is None:
        raise Fault("superclients of unknown samples")
    samples = known.samples

    def closed(members: list[int]) -> bool:
        return len(members) >= settings.max_devices or int(samples[members].sum()) >= settings.min_samples

    groups: list[list[int]] = [[]]
    for _ in range(known.devices):
        if closed(groups[-1]):
            groups.append([])
        groups[-1].append(pick(groups[-1]))
    if closed(groups[-1]) or len(groups) == 1:
        return groups
    for device in groups.pop():
        min(groups, key=lambda members: (len(members), int(samples[members].sum()))).append(device)
    return groups


def _picker(settings: FedSeqArranger, known: KnownDevices, seed: int) -> Picker:
    if settings.grouping == "random":
        order = iter(generator(seed, "fedseq").permutation(known.devices).tolist())
        return lambda _: next(order)
    if known.rows is None:
        raise Fault("FedSeq's grouping needs rows")
    if settings.grouping == "k-means":
        return _deal(known.rows, known.classes or known.rows.shape[1], seed)
    return _greedy(settings, known, known.rows, seed)


def _deal(rows: Rows, classes: int, seed: int) -> Picker:
    """Algorithm 2: a random device of each cluster in turn; the turn continues from one superclient to the next."""
    draw = generator(seed, "fedseq")
    decks = [draw.permutation(members).tolist() for members in _k_means(rows, classes, derive(seed, "k-means"))]
    # Unshuffled, the decks would be in the order of device names, which would bias the deal.
    decks = [decks[at] for at in generator(seed, "decks").permutation(len(decks))]
    turn = 0

    def pick(_: list[int]) -> int:
        nonlocal turn
        while not decks[turn % len(decks)]:
            turn += 1
        turn += 1
        return int(decks[(turn - 1) % len(decks)].pop())

    return pick


def _k_means(rows: Rows, classes: int, seed: int) -> list[list[int]]:
    """Return as many clusters as classes, but no more than there are distinct rows; by their lowest member."""
    from sklearn.cluster import KMeans  # noqa: PLC0415  # only where this grouping is asked for

    clusters = min(classes, len(np.unique(rows, axis=0)))
    labels = KMeans(clusters, n_init=RESTARTS, random_state=seed % 2**32).fit(rows).labels_
    return sorted(np.flatnonzero(labels == label).tolist() for label in range(clusters))


def _greedy(settings: FedSeqArranger, known: KnownDevices, rows: Rows, seed: int) -> Picker:
    """Algorithm 3: a random first device, then the device farthest from the superclient's estimate."""
    if settings.distributions:
        rows = as_distributions(rows)
    draw = generator(seed, "fedseq")
    free = np.ones(len(rows), bool)

    def pick(members: list[int]) -> int:
        left = np.flatnonzero(free)
        if members:
            scores = tau(settings, rows[left], _estimate(settings, rows, known.samples, members))
            newcomer = int(left[np.argmax(scores >= scores.max() - TIE)])
        else:
            newcomer = int(draw.choice(left))
        free[newcomer] = False
        return newcomer

    return pick


def _estimate(settings: FedSeqArranger, rows: Rows, samples: Samples | None, members: list[int]) -> Rows:
    """Return a superclient's running estimate of its data."""
    match settings.estimate:
        case "midpoint":
            return reduce(lambda estimate, member: (estimate + rows[member]) / 2, members[1:], rows[members[0]])
        case "weighted-mean" if samples is not None and samples[members].any():
            return np.asarray(samples[members] @ rows[members] / samples[members].sum())
        case _:
            return np.asarray(rows[members].mean(axis=0))
