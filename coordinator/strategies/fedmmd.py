"""FedMMD.

Xin Yao, Chaofeng Huang and Lifeng Sun: "Two-Stream Federated Learning: Reduce the Communication Costs", VCIP 2018.

FedAvg whose devices minimise CE(f(w,x), y) + lambda·max(1e-4, MMD2(f(w_in,x), f(w,x))), with w_in the model received
and the same batch in both streams, neither of them with dropout. MMD2 = mean k(A,A) + mean k(B,B) - 2·mean k(A,B) over
all pairs of rows; k(a,b) = sum of exp(-|a-b|^2/(2s)) over 19 widths s from 1e-6 to 1e6: 2s, not 2s^2, as in the
authors' code, which compares logits. Under the floor there is no gradient, so the first step is FedAvg's. lambda = 0 is
FedAvg.

The paper does not say lambda and layer, and the line with MMD is commented out in the authors' code, with 0.1 for MNIST
beside it; what runs is `objective.distance = "l2"`, half the sum of |f - f_in|^2 over a batch times 1e-3 (MNIST) or
0.01 (CIFAR): take these as `objective.weight = 0.001`. Others compare `objective.layer = "penultimate"` with
`objective.distance = "mmd-relative"`, widths that go by the mean distance. The authors merge uniformly; models are
weighted by samples here, as in `fedavg`, which it is compared with: set `aggregator.name = "uniform-mean"`. lr = 2e-3,
batch 128 and E = 2 are theirs for CIFAR-10; its decay (0.999 a round) is not built.

In a tour w_in is the predecessor's model; `objective.anchor = "round"` takes the round's. Nothing is remembered on a
device, so lost, late and vanished devices do what they do in `fedavg`.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import Mmd, Training

SUMMARY = "skewed data: outputs stay near those of the model received"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY, objective=Mmd(weight=0.1), training=Training(epochs=2, batch=128, lr=2e-3)
)
