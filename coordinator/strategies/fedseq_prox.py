"""FedSeq with FedProx.

Riccardo Zaccone, Andrea Rizzardi, Debora Caldarola, Marco Ciccone and Barbara Caputo: "Speeding up Heterogeneous
Federated Learning with Sequentially Trained Superclients", ICPR 2022.

`fedseq` whose devices minimise l + mu/2 |w - w_in|^2, mu = 0.01: the model received from the predecessor takes the
place of the global one.

Failures do what they do in `fedseq`; after a lost visit w_in is the model of the last visit that counted.
"""

import msgspec

from coordinator.strategies import fedseq
from sojourn.parts import Prox

SUMMARY = "fedseq, held near the predecessor's model"
STRATEGY = msgspec.structs.replace(fedseq.STRATEGY, objective=Prox(mu=0.01))
