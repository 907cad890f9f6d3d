"""HierFAVG.

Lumin Liu, Jun Zhang, S. H. Song and Khaled B. Letaief: "Client-Edge-Cloud Hierarchical Federated Learning", IEEE ICC
2020.

Every site's devices train in parallel from the edge model; the edge server averages them, weighted by samples, kappa_2
times (`edge_merges`), and then the cloud averages the edge models in the same way. The paper's kappa_1 counts steps;
ours is `epochs`. kappa_2 = 2 is one of its settings; batch 20 and lr = 0.01 are those for MNIST, without its decay of
0.995.

A lost visit is left out of that one edge mean; the device has its place again in the next. An edge mean without results
leaves the edge model as it was. A site that brings nothing home is left out of the cloud's mean, which weighs by the
samples that were really seen. A device that vanished for good is in no later set.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import EdgeCloud, SiteArranger

SUMMARY = "slow links to the cloud: sites merge among themselves first"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY,
    arranger=SiteArranger(fraction=1.0),
    schedule=EdgeCloud(edge_merges=2, rearrange_every=1),
    training=msgspec.structs.replace(fedavg.STRATEGY.training, lr=0.01, batch=20),
)
