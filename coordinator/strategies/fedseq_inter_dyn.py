"""FedSeqInter with FedDyn.

Riccardo Zaccone, Andrea Rizzardi, Debora Caldarola, Marco Ciccone and Barbara Caputo: "Speeding up Heterogeneous
Federated Learning with Sequentially Trained Superclients", ICPR 2022.

`fedseq-inter` with FedDyn's devices, a = 1, and FedDyn's server at each merge: w_prev is the model of the last merge,
and a slot contributes all that it moved since then.

h_k changes with every visit that counted, h only at a merge, so h is the mean of the h_k at merges and lags behind them
in between. Slots fail as in `fedseq-inter`, devices as in `feddyn`.
"""

import msgspec

from coordinator.strategies import fedseq_inter
from sojourn.parts import Dyn, DynServer

SUMMARY = "fedseq-inter whose models disagree: with FedDyn"
STRATEGY = msgspec.structs.replace(fedseq_inter.STRATEGY, objective=Dyn(a=1.0), aggregator=DynServer())
