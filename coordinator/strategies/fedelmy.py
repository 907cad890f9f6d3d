"""FedELMY and the sequential baselines of its tables."""

from msgspec.structs import replace

from coordinator.strategies.strategy import Named, Strategy
from sojourn.parts import ChainArranger, Elmy, OneShot, Ring, Sgd, SingleArranger, Training, UniformMean

PAPER = """
Naibo Wang, Yuchen Deng, Wenjie Feng, Shichen Fan, Jianwei Yin and See-Kiong Ng: "One-Shot Sequential Federated Learning
for Non-IID Data by Enhancing Local Model Diversity", ACM Multimedia 2024.
"""

FEDELMY = Named(
    name="fedelmy",
    title="FedELMY",
    summary="one trip only: each device passes on the mean of its pool",
    paper=PAPER,
    text="""
    One model makes one trip through all devices. The first device warms up a random model for E_w = 30 epochs. Device i
    starts a pool with the model received and trains S = 5 models. Each starts from the pool's mean and trains for
    E_local = 200 epochs on l - alpha·s·d1 + beta·s·d2, alpha = 0.06, beta = 1, with d1 the mean squared distance to the
    pool, d2 that to the model received, and s one order of magnitude below l. The device keeps the best epoch on a
    tenth of its data and passes on the pool's mean. Adam, weight decay 1e-4, batch 128. The paper's lr = 5e-5 is for
    ResNet-18; 1e-3 is the value in the authors' code for their small CNN, and the models here are of that size. These
    values are for CIFAR-10. For Office-Caltech-10 the paper takes S = 10, alpha = beta = 0.001 and E_w = 20: there beta
    = 1 holds each device so close to the received model that plain training does better.

    A lost visit is skipped, whatever the reason: the next device receives the model of the last accepted visit. The
    skipped device's data is missing from the result, because there is no second round. If the first visit is lost, the
    next device is the first. A site without results passes on the model that it received. There is only one model, so
    samples are not used as weights.
    """,
    strategy=Strategy(
        arranger=ChainArranger(order="random"),
        schedule=Ring(trips=1),
        objective=Elmy(models=5, alpha=0.06, beta=1.0, warmup=30, validation=0.1, start="received"),
        training=Training(epochs=200, batch=128, lr=1e-3, optimiser="adam", weight_decay=1e-4),
    ),
)
FEDELMY_FEW_SHOT = Named(
    name="fedelmy-few-shot",
    title="Few-shot FedELMY",
    summary="fedelmy with a few trips around the ring",
    paper=PAPER,
    text="""
    `fedelmy` with T trips around the same ring (Algorithm 1 of the supplement): the last device passes the model to the
    first. The paper does not state T; here it is 3. A trip is a round.

    Failures are handled as in `fedelmy`, but a skipped device takes part again in the next trip. A device that joins
    after the first trip is not in the ring.
    """,
    strategy=replace(FEDELMY.strategy, schedule=Ring(trips=3)),
)
FEDELMY_PARALLEL = Named(
    name="fedelmy-parallel",
    title="Parallel FedELMY",
    summary="fedelmy if a sequence takes too long: all in parallel",
    paper=PAPER,
    text="""
    Algorithm 2 of the supplement: every device warms up its own random model and builds its own pool. The result is the
    uniform mean of the pools' means. A device makes its random model from the received one, by shuffling each tensor.
    Models with different starts average badly; with `objective.start = "received"` all start with the same one.

    The mean skips a lost or late device; there is no second round.
    """,
    strategy=replace(
        FEDELMY.strategy,
        arranger=SingleArranger(fraction=1.0),
        schedule=OneShot(),
        objective=replace(FEDELMY.strategy.objective, start="own"),
        aggregator=UniformMean(),
    ),
)
CHAIN = Named(
    name="chain",
    title="Chain",
    summary="plain sequential baseline: one model, one pass",
    paper="""
    Ken Chang, Niranjan Balachandar, Carson Lam, Darvin Yi, James Brown, Andrew Beers, Bruce Rosen, Daniel L. Rubin and
    Jayashree Kalpathy-Cramer: "Distributed deep learning networks among institutions for medical imaging", JAMIA 2018.
    """,
    text="""
    Single weight transfer: one model makes one plain pass through all devices, E epochs each. FedELMY's tables call
    this one-shot "FedSeq". The training is as there, without its choice of the best epoch. `trips` above 1 is cyclic
    weight transfer.

    Failures are handled as in `fedelmy`.
    """,
    strategy=replace(FEDELMY.strategy, objective=Sgd()),
)
