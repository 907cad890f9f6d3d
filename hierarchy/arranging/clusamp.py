"""CluSamp: one draw from each of m distributions of equal mass, made of clusters of alike devices.

Fraboni, Vidal, Kameni, Lorenzi: "Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection
in Federated Learning", Algorithm 2. Device k has p_k = n_k / n of all data, and m·p_k is its mass: over the m
distributions each device has exactly its mass and each distribution has exactly 1, so a uniform mean of what is drawn
is unbiased. All masses are whole numbers here, m·n_k of n.

- A device of mass 1 or more is alone in floor(m·p_k) distributions; what is left of it goes on.
- Ward's tree of the rows is cut at the largest subtrees of mass at most 1. Rows of zeros (devices that were never
  visited) have no distance from each other, so they merge first.
- The heaviest clusters, as many as distributions are left, are the distributions to begin with. The devices of the
  others, lightest cluster first, in random order inside, fill what is missing, the lightest distribution first; one
  that does not fit into a distribution is split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.ward import ward_merges
from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def clusamp_picks(rows: NDArray[np.float64], samples: NDArray[np.int64], draws: int, seed: int) -> list[int]:
    """The devices drawn, one from each distribution; one with much data can be drawn more than once."""
    draw = generator(seed, "clusamp")
    table = distributions(rows, samples, draws, draw)
    return [int(draw.choice(len(rows), p=masses / masses.sum())) for masses in table]


def distributions(
    rows: NDArray[np.float64], samples: NDArray[np.int64], draws: int, draw: np.random.Generator
) -> NDArray[np.int64]:
    """The mass of each device (column) in each distribution (row), in units of 1 / all samples."""
    full = int(samples.sum())
    whole, rest = np.divmod(draws * samples, full)
    table = np.zeros((draws, len(rows)), np.int64)
    lonely = np.repeat(np.arange(len(rows)), whole)
    table[np.arange(len(lonely)), lonely] = full
    clusters = sorted(_light_clusters(ward_merges(rows), rest, full), key=lambda each: (-rest[each].sum(), each))
    kept = draws - len(lonely)
    for masses, members in zip(table[len(lonely) :], clusters[:kept], strict=True):
        masses[members] = rest[members]
    number = draws - 1
    for members in reversed(clusters[kept:]):
        for device in draw.permutation(members).tolist():
            number = _pour(table, device, int(rest[device]), number, full)
    return table


def _pour(table: NDArray[np.int64], device: int, mass: int, number: int, full: int) -> int:
    """Give a device's mass to distribution `number` and, once that is full, to those before it; say where it ended."""
    while mass:
        room = full - int(table[number].sum())
        poured = min(room, mass)
        table[number, device] += poured
        mass -= poured
        if poured == room:
            number -= 1
    return number


def _light_clusters(merges: Sequence[tuple[int, int]], masses: NDArray[np.int64], most: int) -> list[list[int]]:
    """The largest subtrees whose mass is at most `most`."""
    nodes: list[list[int] | None] = [[device] for device in range(len(masses))]
    for left, right in merges:
        first, second = nodes[left], nodes[right]
        joined = None if first is None or second is None else sorted(first + second)
        if joined is not None and masses[joined].sum() > most:
            joined = None
        if joined is not None:
            nodes[left] = nodes[right] = None
        nodes.append(joined)
    return [members for members in nodes if members]
