"""DFedSAM.

Yifan Shi, Li Shen, Kang Wei, Yan Sun, Bo Yuan, Xueqian Wang and Dacheng Tao: "Improving the Model Consistency of
Decentralized Federated Learning", ICML 2023.

`dfedavgm` whose devices follow the gradient at w + rho·g/|g|, rho = 0.01: flat models are more alike. Each step costs
two gradients. On a complete graph one gossip step is the mean already, so DFedSAM-MGS is the same.

Failures do what they do in `dfedavgm`.
"""

import msgspec

from coordinator.strategies import dfedavgm
from sojourn.parts import Sam

SUMMARY = "dfedavgm where devices overfit: flat minima, slower steps"
STRATEGY = msgspec.structs.replace(dfedavgm.STRATEGY, objective=Sam(rho=0.01))
