"""FedFusion.

Xin Yao, Tianchi Huang, Chenglei Wu, Ruixiao Zhang and Lifeng Sun: "Towards Faster and Better Federated Learning: A
Feature Fusion Approach", ICIP 2019.

Devices minimise CE(h(F(l, g)), y) with l = E(w,x) of the trunk that is trained and g = E(w_in,x) of the one received,
frozen. The fusion F is learnt, and travels in the model: gamma·g + (1 - gamma)·l with one number
(`objective.operator = "single"`) or one for each channel (`objective.operator = "multi"`), from gamma = 0, or a 1x1
convolution of both (`objective.operator = "conv"`), which starts as l alone. gamma frozen at 0 would be FedAvg. The
server takes the uniform mean of all, and then gamma <- 0.1·mean + 0.9·gamma of before, which goes out;
`aggregator.smoothing = 0` sends the mean.

Tested is the *fused* model of a round, with w_in as its frozen trunk, as in the paper; with
`objective.evaluate = "same"` it is its own frozen trunk, which for single and multi is the plain model for any gamma.
That is what a release ships, and what the gate looks at. lr = 5e-3, momentum 0.9 (ours starts anew at each visit),
weight decay 5e-4, batch 64 and E = 5 are the authors' for CIFAR-10; the decay of lr (0.99 a round) is not built. Their
code starts devices that sat a round out from a stale model: a mistake, which is not built either.

In a tour g is of the predecessor's trunk; `objective.anchor = "round"` takes the round's. Nothing is remembered on a
device, so lost, late and vanished devices do what they do in `fedavg`; without any result gamma stays as it is.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import Fusion, FusionMean, Training

SUMMARY = "image models: trunk features fused with the received ones"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY,
    objective=Fusion(operator="multi"),
    aggregator=FusionMean(smoothing=0.9, weighting="uniform"),
    training=Training(epochs=5, batch=64, lr=5e-3, momentum=0.9, weight_decay=5e-4),
)
