"""Strategies by name. A paper is one short file."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING, NamedTuple

from coordinator.strategies import (
    chain,
    clusamp,
    dense,
    dfedavgm,
    dfedsam,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedbn,
    fedcat,
    fedcat_dc,
    fedcat_gc,
    feddyn,
    fedelmy,
    fedelmy_few_shot,
    fedelmy_parallel,
    fedfusion,
    fedgen,
    fedgsp,
    fedmmd,
    fedov,
    fedprox,
    fedseq,
    fedseq_dyn,
    fedseq_inter,
    fedseq_inter_dyn,
    fedseq_inter_prox,
    fedseq_prox,
    fedyogi,
    hiercluster,
    hierfavg,
    ida,
    keel,
    ma_echo,
    metafed,
    moon,
    naive_gsp,
    naive_gsp_icg,
    scaffold,
    visit,
)
from coordinator.strategies.strategy import Strategy
from sojourn.errors import ConfigError
from sojourn.settings import nearest

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["RECOMMENDED", "STRATEGIES", "Named", "Strategy", "find", "named"]

RECOMMENDED = "keel"
"""What `sojourn demo` and simulations without a job file run. A job file that names no strategy means `visit`."""


class Named(NamedTuple):
    """A strategy as people know it: its file's docstring is a title, the paper, and what it does."""

    name: str
    title: str
    paper: str
    text: str
    summary: str
    strategy: Strategy


def _read(module: ModuleType) -> Named:
    name = module.__name__.rpartition(".")[2].replace("_", "-")
    title, paper, text = cleandoc(module.__doc__ or "").split("\n\n", 2)
    return Named(name, title.removesuffix("."), paper, text, module.SUMMARY, module.STRATEGY)


STRATEGIES: dict[str, Named] = {
    each.name: each
    for each in map(
        _read,
        (
            visit, keel, hiercluster, fedavg, fedavgm, fedprox, fedmmd, moon, fedfusion, fedgen, scaffold, feddyn,
            fedadagrad, fedadam, fedyogi, ida, hierfavg, clusamp, fedseq, fedseq_prox, fedseq_dyn, fedseq_inter,
            fedseq_inter_prox, fedseq_inter_dyn, fedgsp, naive_gsp, naive_gsp_icg, fedcat, fedcat_gc, fedcat_dc,
            fedelmy, fedelmy_few_shot, fedelmy_parallel, chain, dfedavgm, dfedsam, fedbn, metafed, dense, ma_echo,
            fedov,
        ),
    )
}  # fmt: skip
"""In the order in which they are listed: each with those that vary it."""


def find(name: str, where: str) -> Named:
    """The strategy of this name, with its title, its text and its summary."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise ConfigError(f"{where}: there is no strategy {name!r}; {nearest(name, STRATEGIES)}") from None


def named(name: str, where: str) -> Strategy:
    """The strategy of this name."""
    return find(name, where).strategy
