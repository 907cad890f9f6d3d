"""FedELMY, few shots.

Naibo Wang, Yuchen Deng, Wenjie Feng, Shichen Fan, Jianwei Yin and See-Kiong Ng: "One-Shot Sequential Federated Learning
for Non-IID Data by Enhancing Local Model Diversity", ACM Multimedia 2024.

`fedelmy` with T trips around the same ring (Algorithm 1 of the supplement): the last device hands the model to the
first. The paper leaves T open: 3 trips; a trip is a round.

Failures do what they do in `fedelmy`, but a device that was skipped has its turn again in the next trip. A device that
joins after the first trip is not in the ring.
"""

import msgspec

from coordinator.strategies import fedelmy
from sojourn.parts import Ring

SUMMARY = "fedelmy with a few trips around the ring"
STRATEGY = msgspec.structs.replace(fedelmy.STRATEGY, schedule=Ring(trips=3))
