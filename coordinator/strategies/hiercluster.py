"""HierCluster.

Christopher Briggs, Zhong Fan and Peter Andras: "Federated Learning with Hierarchical Clustering of Local Updates to
Improve Training on Non-IID Data", IJCNN 2020.

As VISIT's tables have it: Ward's clusters of the signatures, set l drawn from cluster l, so that like is with like, and
the model tours each set. It is the opposite of what VISIT wants and is meant to be worse. As published, the devices'
updates are clustered and each cluster trains a model of its own: `estimator.name = "updates"` gives the first half; a
model for each cluster is not built. A cluster smaller than a set is filled from the nearest ones.

Failures do what they do in `visit`.
"""

import msgspec

from coordinator.strategies import visit
from sojourn.parts import HierClusterArranger

SUMMARY = "control for visit: sets of like devices, meant to be worse"
STRATEGY = msgspec.structs.replace(visit.STRATEGY, arranger=HierClusterArranger(sets=2, size=4))
