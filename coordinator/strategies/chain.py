"""A chain.

Ken Chang, Niranjan Balachandar, Carson Lam, Darvin Yi, James Brown, Andrew Beers, Bruce Rosen, Daniel L. Rubin and
Jayashree Kalpathy-Cramer: "Distributed deep learning networks among institutions for medical imaging", JAMIA 2018.

Single weight transfer: one model makes one plain pass through all devices, E epochs each. FedELMY's tables call this
one-shot "FedSeq"; the training is as there, without its choice of the best epoch. `trips` above 1 is cyclic weight
transfer.

Failures do what they do in `fedelmy`.
"""

import msgspec

from coordinator.strategies import fedelmy
from sojourn.parts import Sgd

SUMMARY = "the plain sequential baseline: one model, one pass"
STRATEGY = msgspec.structs.replace(fedelmy.STRATEGY, objective=Sgd())
