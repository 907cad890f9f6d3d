"""FedCat and its ablations."""

from msgspec.structs import replace

from coordinator.strategies.strategy import Named, Strategy
from sojourn.parts import EveryRound, FedCatArranger, Slots, Training

PAPER = """
Ming Hu, Tian Liu, Zhiwei Ling, Zhihao Yue and Mingsong Chen: "FedCAT: Towards Accurate Federated Learning via Device
Concatenation", arXiv:2202.12751, 2022.
"""

FEDCAT = Named(
    name="fedcat",
    title="FedCat",
    summary="FedAvg's bytes: model copies hop from device to device",
    paper=PAPER,
    text="""
    K model copies travel for a cycle of K rounds. Devices are split at random into K groups, and again every lambda·K
    rounds. Each round takes one device of each group by the number of times that it was picked at this position of the
    cycle: with probability epsilon the device picked least, otherwise a random one in proportion to 1/sqrt(count). In
    the cycle's round j = 0, 1, ... copy i goes to selected device (i + j) mod K. After K rounds the copies merge,
    weighted by the samples that each has accumulated. K = 10, lr = 0.01, momentum 0.9, batch 50 and E = 5 are the
    paper's values. It does not state lambda and epsilon; here they are 1 and 0.5.

    A copy whose visit was lost or late keeps its model and sample count, and continues to its next device; the merge
    weights it by that count. A pick counts when it is planned, as in Algorithm 3, so a device that always declines does
    not block its group. A device that leaves for good is not picked again; if its group is then empty, the group takes
    a device of the largest one. With fewer than K devices the job waits. An unfinished last cycle also merges.
    """,
    strategy=Strategy(
        arranger=FedCatArranger(sets=10, epsilon=0.5, regroup=1, grouped=True),
        schedule=Slots(merge_every=0, rotate=True, rearrange_every=1),
        training=Training(epochs=5, batch=50, lr=0.01, momentum=0.9),
    ),
)
FEDCAT_GC = Named(
    name="fedcat-gc",
    title="FedCat with GC alone",
    summary="control for fedcat: its device selection, merged every round",
    paper=PAPER,
    text="""
    The ablation "FedCat w/ GC": grouping and count-based selection, but models merge in every round.

    The mean skips a lost or late visit, as in `fedavg`; counts are kept as in `fedcat`.
    """,
    strategy=replace(FEDCAT.strategy, schedule=EveryRound(rearrange_every=1)),
)
FEDCAT_DC = Named(
    name="fedcat-dc",
    title="FedCat with DC alone",
    summary="control for fedcat: copies hop between random devices",
    paper=PAPER,
    text="""
    The ablation "FedCat w/ DC": device concatenation, but K devices are drawn at random in each round, without groups.

    Failures are handled as in `fedcat`; there are no counts.
    """,
    strategy=replace(FEDCAT.strategy, arranger=replace(FEDCAT.strategy.arranger, grouped=False)),
)
