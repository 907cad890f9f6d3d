"""What objectives add to the plain loss, of rows that the model and frozen models make of the same samples.

FedMMD: Yao, Huang and Sun, "Two-Stream Federated Learning: Reduce the Communication Costs", VCIP 2018. MOON: Li, He and
Song, "Model-Contrastive Federated Learning", CVPR 2021.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sojourn.errors import Fault
from sojourn.parts import FeatureMatch, Mmd, Moon, TwoStreamPart, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Term = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]
    """Of the rows that the model gives, those that the frozen models give, and the numbers."""

WIDTHS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 5, 10, 15, 20, 25, 30, 35, 100, 1e3, 1e4, 1e5, 1e6)
"""s of exp(-d / (2 s)), with d the square of a distance: 2 s, and not 2 s^2, as in the authors' code."""
RELATIVE = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of exp(-d / width) in means of d."""
TINY = 1e-30
"""Where all rows are the same, their mean distance counts as this."""
SMALLEST = 1e-4
"""A representation shorter than this counts as so long: it has no direction, and its slope no bound."""


def term_of(objective: TwoStreamPart) -> Term:
    """What an objective adds to the plain loss; FedFusion adds nothing, and changes the model instead."""
    match objective:
        case FeatureMatch():
            return feature_match
        case Mmd(distance="l2"):
            return row_distance
        case Mmd():
            return partial(discrepancy, floor=objective.floor, relative=objective.distance == "mmd-relative")
        case Moon():
            return contrast
        case _:
            raise Fault(f"there is no second stream for the objective {name_of(objective)!r}")


def feature_match(here: Tensor, anchors: Sequence[Tensor], numbers: Sequence[Tensor]) -> Tensor:
    """weight MSE(phi(w, x), phi(anchor, x))."""
    return numbers[0] * (here - anchors[0]).square().mean()


def row_distance(here: Tensor, anchors: Sequence[Tensor], numbers: Sequence[Tensor]) -> Tensor:
    """weight / 2 of the sum over the batch of |f - f_anchor|^2."""
    return 0.5 * numbers[0] * (here - anchors[0]).square().sum()


def discrepancy(
    here: Tensor, anchors: Sequence[Tensor], numbers: Sequence[Tensor], *, floor: float, relative: bool
) -> Tensor:
    """weight max(floor, MMD2); under the floor there is no gradient."""
    found: Tensor = MeanDiscrepancy.apply(here, anchors[0], relative)
    return numbers[0] * torch.where(found > floor, found, floor)


class MeanDiscrepancy(torch.autograd.Function):
    """MMD2(A, B) = mean k(A, A) + mean k(B, B) - 2 mean k(A, B) over all pairs of rows; the gradient is by A alone.

    Distances are taken of differences: of inner products those below 1e-6 would be rounding. The gradient is worked out
    with the value, from the same differences: with K the kernel as a function of d, that by row i of A is
    4 / B^2 (sum_j K'(d(a_i, a_j)) (a_i - a_j) - sum_j K'(d(a_i, b_j)) (a_i - b_j)). It takes memory for 3 B^2 C numbers
    of B samples with rows of C, and for as many kernels as there are widths.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, relative: bool) -> Tensor:
        """The value; what `relative` means is said in `sojourn.parts.two_stream.Mmd`."""
        # Samples last: broadcasting along a short last axis, such as ten classes, takes several times as long.
        one, other = a.t(), b.t()
        ones = torch.ones_like(one[0])
        count = ones.sum()
        apart = one.unsqueeze(2) - torch.cat([one, other], 1).unsqueeze(1)
        beyond = other.unsqueeze(2) - other.unsqueeze(1)
        squares = torch.cat([(apart * apart).sum(0), (beyond * beyond).sum(0)], 1)  # a row: of a_i to all, of b_i to b
        scale = 1 / _mean_square(squares, ones, count) if relative else torch.ones(())
        rates = torch.tensor([-1 / each if relative else -0.5 / each for each in (RELATIVE if relative else WIDTHS)])
        kernels = torch.exp(rates.unsqueeze(1) * (squares * scale if relative else squares).reshape(1, -1))
        sums = torch.stack([torch.ones_like(rates), rates]) @ kernels  # of the kernels, and of their slopes
        value, slope = sums.reshape(2, *squares.shape)
        pulls = slope[:, : 2 * one.shape[1]] * torch.cat([ones, -ones])  # the last third is of b alone
        by_row = (apart * pulls).sum(2)
        ctx.save_for_backward((4 * scale / (count * count) * by_row).t())
        return (value * torch.cat([ones, -2 * ones, ones])).sum() / (count * count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """By the rows of A."""
        return gradients[0] * ctx.saved_tensors[0], None, None


def _mean_square(squares: Tensor, ones: Tensor, count: Tensor) -> Tensor:
    """The mean of d over pairs of different rows of both sets."""
    total = (squares * torch.cat([ones, 2 * ones, ones])).sum()
    return (total / (4 * count * count - 2 * count)).clamp(min=TINY)


def contrast(here: Tensor, anchors: Sequence[Tensor], numbers: Sequence[Tensor]) -> Tensor:
    """mu CE([cos(p, p_anchor), cos(p, p_own)] / tau, 0)."""
    mu, tau = numbers
    p, *others = (_of_length_1(rows) for rows in (here, *anchors))
    likeness = torch.stack([(p * other).sum(1) for other in others], 1) / tau
    return -mu * torch.log_softmax(likeness, 1)[:, 0].mean()


def _of_length_1(rows: Tensor) -> Tensor:
    return rows * (rows * rows).sum(1, keepdim=True).clamp(min=SMALLEST**2).rsqrt()
