"""FedSeq with FedDyn.

Riccardo Zaccone, Andrea Rizzardi, Debora Caldarola, Marco Ciccone and Barbara Caputo: "Speeding up Heterogeneous
Federated Learning with Sequentially Trained Superclients", ICPR 2022.

`fedseq` with FedDyn's devices, a = 0.1, w_in the model received from the predecessor, and FedDyn's server: a tour
contributes w_tour - w_prev, since its visits telescope, and N counts devices. Signs are FedDyn's own: the paper's
equation 6 turns the linear term's, and its equation 7 drops the old h.

h_k and h change only with visits that counted, as in `feddyn`; tours fail as in `fedseq`. A tour that was lost with its
site after some of its visits were accepted leaves their h_k ahead of h.
"""

import msgspec

from coordinator.strategies import fedseq
from sojourn.parts import Dyn, DynServer

SUMMARY = "fedseq whose superclients still differ: with FedDyn"
STRATEGY = msgspec.structs.replace(fedseq.STRATEGY, objective=Dyn(a=0.1), aggregator=DynServer())
