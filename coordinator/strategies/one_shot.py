"""Strategies of one round, in which a finisher combines the devices' models."""

from coordinator.strategies.strategy import Named, Strategy
from sojourn.parts import Dense, Echo, EchoServer, OneShot, Outliers, SingleArranger, Training, UniformMean, Vote

DENSE = Named(
    name="dense",
    title="DENSE",
    summary="one round; the server trains a new model on generated images",
    paper="""
    Jie Zhang, Chen Chen, Bo Li, Lingjuan Lyu, Shuang Wu, Shouhong Ding, Chunhua Shen and Chao Wu: "DENSE: Data-Free
    One-Shot Federated Learning", NeurIPS 2022.
    """,
    text="""
    One round: every device trains from the same start, plain SGD, lr = 0.01, momentum 0.9, batch 128. The authors'
    README has 400 epochs and their flags have 100; here it is 200, as in the paper. Then the coordinator trains alone.
    In each of 200 epochs it initialises a generator G, which makes 256 images in 30 steps. The images are such that the
    ensemble is confident (oh), their BatchNorm statistics match (bn) and the student errs (adv). A new student learns
    the mean of the ensemble's logits from all images so far (tau = 20, lr = 0.005). The result is the student; the
    round's report also has the quality of the plain mean and of the ensemble. Only for images and for one architecture.
    It costs devices nothing. The coordinator runs about 20,000 batches of 256 through every member; it uses a GPU if
    there is one.

    A lost or late device is not a teacher; with one device the student learns from it alone. There is no second round.
    """,
    strategy=Strategy(
        arranger=SingleArranger(fraction=1.0),
        schedule=OneShot(),
        aggregator=UniformMean(),
        finisher=Dense(),
        training=Training(lr=0.01, momentum=0.9, batch=128, epochs=200),
    ),
)
MA_ECHO = Named(
    name="ma-echo",
    title="MA-Echo",
    summary="one round; the merge preserves each device's predictions",
    paper="""
    Shangchao Su, Bin Li and Xiangyang Xue: "One-Shot Federated Learning without Server-Side Training", Neural Networks
    2023.
    """,
    text="""
    One round: every device trains its own random model (lr = 0.01, momentum 0.5, batch 64, 10 epochs). It then goes
    through its data once more without training: for each layer of weights it finds the projection P_i onto the
    directions that its data leaves free. The coordinator moves all models together along the P_i, tau = 60 times by lam
    = 1.6 (the authors' MLP; for a CNN they have tau = 300, lam = 0.05, norm = true). So each layer keeps its outputs on
    each device's data; the last layer's row of a class is the mean over devices that have it. Weights alpha_i are
    equal, as in the authors' code. Their paper chooses them, and can align neurons first; neither is built. P takes d x
    d numbers for a layer with d inputs; `objective.rank = 64` sends only 64 leading directions. For the first layer
    they reveal the device's mean samples, so only devices whose owners share projections take part.

    The mean skips a lost or late device. With one device the result is its model. There is no second round.
    """,
    strategy=Strategy(
        arranger=SingleArranger(fraction=1.0),
        schedule=OneShot(),
        objective=Echo(),
        aggregator=UniformMean(),
        finisher=EchoServer(),
        training=Training(lr=0.01, momentum=0.5, batch=64, epochs=10),
    ),
)
FEDOV = Named(
    name="fedov",
    title="FedOV",
    summary="one round; models that detect unknown samples vote",
    paper="""
    Yiqun Diao, Qinbin Li and Bingsheng He: "Towards Addressing Label Skews in One-Shot Federated Learning", ICLR 2023.
    """,
    text="""
    One round: every device trains its own random model with C + 1 outputs. It learns the last output, for unknown
    samples, from outliers made from its samples (a small crop, a blur, a hole, halves cut or turned), from outliers
    changed so as to look known, from its samples without their own class, and from mixtures of dissimilar samples.
    Adam, lr = 1e-3, weight decay 1e-5, batch 64, 200 epochs, as in the authors' script. The result is a vote: the sum
    of the models' probabilities of the C classes, so a model that rates a sample as unknown hardly counts. A vote is
    evaluated but cannot be released. A student learns from it on the exemplars (Adam, 100 epochs) and can be released.
    With BatchNorm the model learns only from samples and outliers, in one batch, as in the authors' code. Only for
    images. A step costs about ten plain ones.

    A lost or late device has no vote; with one device its outputs are the vote. There is no second round.
    """,
    strategy=Strategy(
        arranger=SingleArranger(fraction=1.0),
        schedule=OneShot(),
        objective=Outliers(),
        aggregator=UniformMean(),
        finisher=Vote(),
        training=Training(lr=1e-3, optimiser="adam", weight_decay=1e-5, batch=64, epochs=200),
    ),
)
