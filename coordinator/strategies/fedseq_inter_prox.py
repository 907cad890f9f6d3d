"""FedSeqInter with FedProx.

Riccardo Zaccone, Andrea Rizzardi, Debora Caldarola, Marco Ciccone and Barbara Caputo: "Speeding up Heterogeneous
Federated Learning with Sequentially Trained Superclients", ICPR 2022.

`fedseq-inter` whose devices minimise l + mu/2 |w - w_in|^2 with w_in the predecessor's model. mu = 1: models that merge
seldom should keep more of what their predecessor learnt.

Failures do what they do in `fedseq-inter`; nothing is remembered on a device.
"""

import msgspec

from coordinator.strategies import fedseq_inter
from sojourn.parts import Prox

SUMMARY = "fedseq-inter that forgets: held near the predecessor"
STRATEGY = msgspec.structs.replace(fedseq_inter.STRATEGY, objective=Prox(mu=1.0))
