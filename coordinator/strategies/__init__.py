"""The catalogue of strategies: each module holds a paper's strategy and its variants."""

from __future__ import annotations

from inspect import cleandoc

from coordinator.strategies import fedavg, fedcat, fedelmy, fedgsp, fedseq, one_shot, personal, two_streams, visit
from coordinator.strategies.strategy import Named, Strategy
from sojourn.errors import ConfigError
from sojourn.settings import nearest

__all__ = ["DEFAULT_STRATEGY", "RECOMMENDED_STRATEGY", "STRATEGIES", "Named", "Strategy", "find", "named"]

DEFAULT_STRATEGY = "visit"
"""The strategy of a job file that does not name one."""
RECOMMENDED_STRATEGY = "keel"
"""The strategy of `sojourn demo` and of simulations without a job file."""
_LISTED = (
    visit.VISIT, visit.KEEL, visit.HIERCLUSTER, fedavg.FEDAVG, fedavg.FEDAVGM, fedavg.FEDPROX, two_streams.FEDMMD,
    two_streams.MOON, two_streams.FEDFUSION, two_streams.FEDGEN, fedavg.SCAFFOLD, fedavg.FEDDYN, fedavg.FEDADAGRAD,
    fedavg.FEDADAM, fedavg.FEDYOGI, fedavg.IDA, fedavg.HIERFAVG, fedavg.CLUSAMP, fedseq.FEDSEQ, fedseq.FEDSEQ_PROX,
    fedseq.FEDSEQ_DYN, fedseq.FEDSEQ_INTER, fedseq.FEDSEQ_INTER_PROX, fedseq.FEDSEQ_INTER_DYN, fedgsp.FEDGSP,
    fedgsp.NAIVE_GSP, fedgsp.NAIVE_GSP_ICG, fedcat.FEDCAT, fedcat.FEDCAT_GC, fedcat.FEDCAT_DC, fedelmy.FEDELMY,
    fedelmy.FEDELMY_FEW_SHOT, fedelmy.FEDELMY_PARALLEL, fedelmy.CHAIN, fedavg.DFEDAVGM, fedavg.DFEDSAM, personal.FEDBN,
    personal.METAFED, one_shot.DENSE, one_shot.MA_ECHO, one_shot.FEDOV,
)  # fmt: skip
STRATEGIES: dict[str, Named] = {
    each.name: each._replace(paper=cleandoc(each.paper), text=cleandoc(each.text)) for each in _LISTED
}
"""All strategies by name, in the order of `sojourn strategies`: each strategy is followed by its variants."""


def find(name: str, where: str) -> Named:
    """Return the strategy of this name, with its title, text and summary."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise ConfigError(f"{where}: there is no strategy {name!r}; {nearest(name, STRATEGIES)}") from None


def named(name: str, where: str) -> Strategy:
    """Return the strategy of this name."""
    return find(name, where).strategy
