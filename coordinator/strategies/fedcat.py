"""FedCat.

Ming Hu, Tian Liu, Zhiwei Ling, Zhihao Yue and Mingsong Chen: "FedCAT: Towards Accurate Federated Learning via Device
Concatenation", arXiv:2202.12751, 2022.

K model copies travel for a cycle of K rounds. Devices are split at random into K groups, anew every lambda·K rounds;
each round takes one device of each group, by 1/sqrt(how often it was picked in this position of the cycle), the argmax
with probability epsilon. In the cycle's round j = 0, 1, ... copy i goes to selected device (i + j) mod K. After K
rounds the copies merge, weighted by the samples each has accumulated. K = 10, lr = 0.01, momentum 0.9, batch 50, E = 5
are the paper's; it gives no lambda or epsilon: 1 and 0.5.

A copy whose visit was lost or came too late stays as it was, model and samples, and goes on to its next device; at the
merge it weighs what it has seen. A pick counts when it is planned, as in Algorithm 3, so a device that always declines
does not hold up its group. A device that vanished for good is no longer picked; a group that it leaves empty takes a
device of the largest one. Fewer than K devices: the job waits. An unfinished last cycle merges too.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import FedCatArranger, Slots, Training

SUMMARY = "FedAvg's bytes: model copies hop from device to device"
STRATEGY = Strategy(
    arranger=FedCatArranger(sets=10, epsilon=0.5, regroup=1, grouped=True),
    schedule=Slots(merge_every=0, rotate=True, rearrange_every=1),
    training=Training(epochs=5, batch=50, lr=0.01, momentum=0.9),
)
