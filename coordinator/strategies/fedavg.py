"""FedAvg, and the methods that change one of its parts, including DFedAvgM and DFedSAM."""

from msgspec.structs import replace

from coordinator.strategies.strategy import Named, Strategy
from sojourn.parts import (
    Adagrad,
    Adam,
    AvgM,
    CluSampArranger,
    Dyn,
    DynServer,
    EdgeCloud,
    Ida,
    Prox,
    Sam,
    Scaffold,
    ScaffoldServer,
    SingleArranger,
    SiteArranger,
    Training,
    UniformMean,
    UpdateEstimator,
    Yogi,
)

PAPER = """
Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv Kumar and H.
Brendan McMahan: "Adaptive Federated Optimization", ICLR 2021.
"""

FEDAVG = Named(
    name="fedavg",
    title="FedAvg",
    summary="plain baseline: parallel training, mean weighted by samples",
    paper="""
    H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson and Blaise Agüera y Arcas: "Communication-Efficient
    Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """,
    text="""
    Each tour has one device. Each of max(1, floor(C·K)) devices trains E epochs of mini-batch SGD from the global model
    w_t, all in parallel. Then w_{t+1} = sum of n_k / n · w_k over the models that came back. The paper varies C, E, B
    and the learning rate; here all devices train (C = 1) with the default training settings.

    A lost visit is a lost tour: the mean skips it, and n counts only the samples that were trained on. If every visit
    of a round is lost, the model stays as it was. A late result is ignored. A device that leaves for good is not drawn
    again, and nothing remains to clean up.
    """,
    strategy=Strategy(arranger=SingleArranger(fraction=1.0)),
)
FEDAVGM = Named(
    name="fedavgm",
    title="FedAvgM",
    summary="FedAvg results vary between rounds: momentum on the server",
    paper="""
    Tzu-Ming Harry Hsu, Hang Qi and Matthew Brown: "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", arXiv:1909.06335, 2019.
    """,
    text="""
    FedAvg with momentum on the server: with d = mean(w_k) - w_t, v <- beta·v + d and w_{t+1} = w_t + v. beta = 0.9 is
    the paper's value; beta = 0 with a server learning rate of 1 is FedAvg. The paper varies learning rate, epochs and
    fraction; here they are as in `fedavg`.

    d excludes lost, late and departed devices, as in `fedavg`. If every visit of a round is lost, neither the model nor
    v changes.
    """,
    strategy=replace(FEDAVG.strategy, aggregator=AvgM(momentum=0.9, lr=1.0)),
)
FEDPROX = Named(
    name="fedprox",
    title="FedProx",
    summary="many local epochs: devices stay close to the received model",
    paper="""
    Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar and Virginia Smith: "Federated Optimization
    in Heterogeneous Networks", MLSys 2020.
    """,
    text="""
    FedAvg whose devices minimise F_k(w) + mu/2 |w - w_t|^2, with w_t the model received: the step follows g + mu·(w -
    w_t). mu = 0 is FedAvg. The paper trains E = 20 epochs in batches of 10 and selects mu from 0.001, 0.01, 0.1 and 1
    for each data set. mu = 0.01 is what FedSeq and FedCat use for CIFAR-10. The paper's learning rates differ by data
    set; here the default stays.

    A device keeps no state between visits, so lost, late and departed devices are handled as in `fedavg`. A device that
    cannot finish its epochs is lost. The paper's partial work (gamma-inexact solutions) would be fewer `epochs`.
    """,
    strategy=replace(
        FEDAVG.strategy,
        objective=Prox(mu=0.01),
        training=replace(FEDAVG.strategy.training, epochs=20, batch=10),
    ),
)
SCAFFOLD = Named(
    name="scaffold",
    title="SCAFFOLD",
    summary="skewed data, stable fleet: corrects drift, twice the bytes",
    paper="""
    Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich and Ananda Theertha
    Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.
    """,
    text="""
    Device k steps along g - c_k + c and, by option II, ends with c_k' = c_k - c + (w_in - w_out) / (steps·lr). It
    returns c_k' - c_k. The server adds (1/N)·sum of these to c, and x <- x + eta_g·(mean(w_k) - x) with the uniform
    mean and eta_g = 1. N counts all devices that the job has had, not only those of the round; if a device joins, N
    grows. Option II assumes plain SGD: momentum and Adam are refused. The paper's batches are a fifth of a device's
    data; here the batch is a fixed number.

    A visit that was lost, late or refused by the gate changes neither c_k nor c. A device keeps c_k' only if its result
    was accepted, and only then does its difference count, so c = (1/N)·sum(c_k). The exception is a site that is lost
    after it accepted results: their c_k are then ahead of c. A visit without a step leaves c_k as it is. The share in c
    of a device that leaves for good stays, so the other devices are still corrected towards its data. If that matters,
    start a new job. A device that was set up again starts with c_k = 0, and reports that it lost its memory.
    """,
    strategy=replace(FEDAVG.strategy, objective=Scaffold(), aggregator=ScaffoldServer(lr=1.0, weighting="uniform")),
)
FEDDYN = Named(
    name="feddyn",
    title="FedDyn",
    summary="skewed data, stable fleet: corrects drift, no extra bytes",
    paper="""
    Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough and Venkatesh Saligrama:
    "Federated Learning Based on Dynamic Regularization", ICLR 2021.
    """,
    text="""
    Device k steps along g - h_k + a·(w - w_in) and keeps h_k <- h_k - a·(w_out - w_in). The server keeps h <- h -
    a·(1/N)·sum(w_k - w_prev) over the participants, with N all devices that the job has had, and w = mean(w_k) - h/a
    with the uniform mean. alpha = 0.01, lr = 0.1, weight decay 1e-3, batch 50 and E = 5 are the paper's values for
    CIFAR-10. Its decay of the learning rate (0.998 a round) and its gradient clipping are not built: if training
    diverges, lower `lr`.

    A visit that was lost, late or refused by the gate changes neither h_k nor h. A device keeps its h_k only if its
    result was accepted, so h = (1/N)·sum(h_k). The exception is a site that is lost after it accepted results: their
    h_k are then ahead of h. A round without results changes nothing. The share in h of a device that leaves for good
    stays. A device that joins starts with h_k = 0, and N grows. A device that was set up again also starts with h_k =
    0, and reports that it lost its memory.
    """,
    strategy=replace(
        FEDAVG.strategy,
        objective=Dyn(a=0.01),
        aggregator=DynServer(),
        training=Training(epochs=5, batch=50, lr=0.1, weight_decay=1e-3),
    ),
)
FEDADAGRAD = Named(
    name="fedadagrad",
    title="FedAdagrad",
    summary="rare features: server step sizes per parameter only shrink",
    paper=PAPER,
    text="""
    FedAvg whose server takes d = mean(w_k) - w as a pseudo-gradient: m <- beta1·m + (1 - beta1)·d, v <- v + d^2, w <- w
    + eta·m / (sqrt(v) + tau). There is no bias correction; v starts at tau^2. beta1 = 0, tau = 1e-3. The paper tunes
    both learning rates by task; eta = 0.1, eta_l = 10^-1.5, batch 20 and E = 1 are its values for CIFAR-10.

    d excludes lost, late and departed devices, as in `fedavg`. A round without results changes neither w nor m nor v.
    """,
    strategy=replace(
        FEDAVG.strategy,
        aggregator=Adagrad(lr=0.1, beta1=0.0, tau=1e-3),
        training=replace(FEDAVG.strategy.training, lr=0.0316, batch=20),
    ),
)
FEDADAM = Named(
    name="fedadam",
    title="FedAdam",
    summary="tasks that are hard to tune: Adam on the server",
    paper=PAPER,
    text="""
    As `fedadagrad`, with v <- beta2·v + (1 - beta2)·d^2, which forgets old rounds. beta1 = 0.9, beta2 = 0.99, tau =
    1e-3, no bias correction. eta = 0.01 with eta_l = 10^-1.5 is the paper's choice for CIFAR-10.

    d excludes lost, late and departed devices, as in `fedavg`. A round without results changes neither w nor m nor v.
    """,
    strategy=replace(FEDADAGRAD.strategy, aggregator=Adam(lr=0.01, beta1=0.9, beta2=0.99, tau=1e-3)),
)
FEDYOGI = Named(
    name="fedyogi",
    title="FedYogi",
    summary="like fedadam, with gentler steps if few devices train",
    paper=PAPER,
    text="""
    As `fedadam`, with v <- v - (1 - beta2)·d^2·sign(v - d^2): v changes by at most d^2, even if d is small. beta1 =
    0.9, beta2 = 0.99, tau = 1e-3; eta = 0.01 with eta_l = 10^-1.5 is the paper's choice for CIFAR-10.

    d excludes lost, late and departed devices, as in `fedavg`. A round without results changes neither w nor m nor v.
    """,
    strategy=replace(FEDADAM.strategy, aggregator=Yogi(lr=0.01, beta1=0.9, beta2=0.99, tau=1e-3)),
)
IDA = Named(
    name="ida",
    title="IDA",
    summary="a few outlier devices: models far from the mean count less",
    paper="""
    Yousef Yeganeh, Azade Farshad, Nassir Navab and Shadi Albarqouni: "Inverse Distance Aggregation for Federated
    Learning with Non-IID Data", DART and DCL workshops at MICCAI 2020.
    """,
    text="""
    FedAvg with other weights: alpha_k is proportional to 1 / (epsilon + |w_k - w_avg|), with w_avg the mean of the
    models that came back, here weighted by samples (`weighting = "uniform"` is the alternative). The paper does not
    state epsilon; here it is 1e-6.

    Both means exclude lost, late and departed devices. If only one model comes back, it is the result. A round without
    results leaves the model as it was.
    """,
    strategy=replace(FEDAVG.strategy, aggregator=Ida(epsilon=1e-6)),
)
HIERFAVG = Named(
    name="hierfavg",
    title="HierFAVG",
    summary="slow links to the cloud: each site merges its devices first",
    paper="""
    Lumin Liu, Jun Zhang, S. H. Song and Khaled B. Letaief: "Client-Edge-Cloud Hierarchical Federated Learning", IEEE
    ICC 2020.
    """,
    text="""
    The devices of each site train in parallel from the edge model. The edge server averages them, weighted by samples,
    kappa_2 times (`edge_merges`), and then the cloud averages the edge models in the same way. The paper's kappa_1
    counts steps; here it is `epochs`. kappa_2 = 2 is one of its settings; batch 20 and lr = 0.01 are its values for
    MNIST, without its decay of 0.995.

    A lost visit is missing from that one edge mean; the device takes part in the next one again. An edge mean without
    results leaves the edge model as it was. The cloud's mean skips a site without results and weighs by the samples
    that were trained on. A device that leaves for good is in no later set.
    """,
    strategy=replace(
        FEDAVG.strategy,
        arranger=SiteArranger(fraction=1.0),
        schedule=EdgeCloud(edge_merges=2, rearrange_every=1),
        training=replace(FEDAVG.strategy.training, lr=0.01, batch=20),
    ),
)
CLUSAMP = Named(
    name="clusamp",
    title="CluSamp",
    summary="few of many devices per round, drawn from all kinds",
    paper="""
    Yann Fraboni, Richard Vidal, Laetitia Kameni and Marco Lorenzi: "Clustered Sampling: Low-Variance and Improved
    Representativity for Clients Selection in Federated Learning", ICML 2021.
    """,
    text="""
    Algorithm 2: Ward's method clusters the devices' last updates theta_k - theta into m distributions with an equal
    mass of data. One device is drawn from each, in proportion to its samples. The m models are averaged uniformly,
    since the draw already weighted them. A device without a visit has a zero update, so the first round draws by
    samples alone. m = 10 is the paper's value; the paper varies the rest, so training is as in `fedavg`. A device can
    be drawn twice in a round, so objectives with a memory are refused.

    The mean skips a lost or late draw and is uniform over the rest; the device's stored update stays that of its last
    accepted visit. A round without results changes nothing. A device that leaves for good is in no later cluster; its
    update is kept in case it returns.
    """,
    strategy=replace(
        FEDAVG.strategy,
        estimator=UpdateEstimator(epochs=0),
        arranger=CluSampArranger(sets=10),
        aggregator=UniformMean(),
    ),
)


DFEDAVGM = Named(
    name="dfedavgm",
    title="DFedAvgM",
    summary="unknown sample counts: uniform mean, momentum on devices",
    paper="""
    Tao Sun, Dongsheng Li and Bao Wang: "Decentralized Federated Averaging", IEEE Transactions on Pattern Analysis and
    Machine Intelligence, 2023.
    """,
    text="""
    Every device trains with momentum theta = 0.9, which starts at zero at each visit, and averages with its neighbours.
    As in FedELMY's tables, the graph is complete and all devices take part. The result is the uniform mean of all
    models, which the edge servers and the cloud compute. Sparse graphs and quantised messages are not built. lr = 0.1,
    weight decay 5e-4, batch 128 and E = 5 are from DFedSAM's comparison.

    The mean skips a lost or late visit and is uniform over the rest. A round without results changes nothing.
    """,
    strategy=replace(
        FEDAVG.strategy,
        aggregator=UniformMean(),
        training=Training(epochs=5, batch=128, lr=0.1, momentum=0.9, weight_decay=5e-4),
    ),
)
DFEDSAM = Named(
    name="dfedsam",
    title="DFedSAM",
    summary="dfedavgm if devices overfit: flat minima, slower steps",
    paper="""
    Yifan Shi, Li Shen, Kang Wei, Yan Sun, Bo Yuan, Xueqian Wang and Dacheng Tao: "Improving the Model Consistency of
    Decentralized Federated Learning", ICML 2023.
    """,
    text="""
    `dfedavgm` whose devices follow the gradient at w + rho·g/|g|, rho = 0.01: models in flat minima differ less. Each
    step costs two gradients. On a complete graph one gossip step already gives the mean, so DFedSAM-MGS is the same.

    Failures are handled as in `dfedavgm`.
    """,
    strategy=replace(DFEDAVGM.strategy, objective=Sam(rho=0.01)),
)
