"""FedSeqInter.

Riccardo Zaccone, Andrea Rizzardi, Debora Caldarola, Marco Ciccone and Barbara Caputo: "Speeding up Heterogeneous
Federated Learning with Sequentially Trained Superclients", ICPR 2022.

`fedseq` with as many model slots as superclients train in a round. The model of slot i tours the i-th superclient drawn
and stays in its slot; the slots merge after N_S rounds, weighted by the samples each has seen since the last merge
(Algorithm 1, line 15, would merge after the first round). In between the weighted mean of the slots is what is
evaluated. `merge_every = 1` is FedSeq.

A lost visit costs its hop and its samples. A tour that came to nothing, or too late, leaves its slot as it was, model
and count, and the slot merges with what it has; a slot that saw nothing since the last merge has no weight. A device
that vanished for good leaves its superclient smaller; where fewer superclients are left, fewer slots travel and the
others rest until the merge.
"""

import msgspec

from coordinator.strategies import fedseq
from sojourn.parts import Slots

SUMMARY = "very skewed data: fedseq that merges only now and then"
STRATEGY = msgspec.structs.replace(
    fedseq.STRATEGY, schedule=Slots(merge_every=0, rearrange_every=0, fraction=0.2, order="shuffled")
)
