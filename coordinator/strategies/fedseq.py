"""FedSeq and its variants."""

from msgspec.structs import replace

from coordinator.strategies.strategy import Named, Strategy
from sojourn.parts import ConfidenceEstimator, Dyn, DynServer, EveryRound, FedSeqArranger, Prox, Slots, Training

PAPER = """
Riccardo Zaccone, Andrea Rizzardi, Debora Caldarola, Marco Ciccone and Barbara Caputo: "Speeding up Heterogeneous
Federated Learning with Sequentially Trained Superclients", ICPR 2022.
"""

FEDSEQ = Named(
    name="fedseq",
    title="FedSeq",
    summary="many small devices: diverse superclients, built once",
    paper=PAPER,
    text="""
    Superclients are built once: greedily, from psi_conf (the mean softmax outputs on exemplars after e = 10 epochs,
    normalised to a distribution) with tau = KL. Each is closed at |D_S|min = 800 samples or K_S,max = 11 devices. In
    each round max(1, floor(0.2·N_S)) of them train: the model tours a superclient's devices in shuffled order, E_k = 1
    epoch each, E_S = 1 pass. The server averages the results weighted by |D_S|. lr = 0.01, weight decay 4e-4, no
    momentum, batch 64. VISIT's tables use another form: `sets` and `size`, `tau = "cosine"`, `estimate = "mean"`,
    `rearrange_every = 1`.

    A lost visit costs its hop: the superclient's weight counts only the samples that its model was trained on. The mean
    skips a superclient that lost all its visits. A late result is ignored. A device that leaves for good makes its
    superclient smaller, and an empty superclient is removed. Superclients are built again only if `rearrange_every` is
    set; until then a device that joins is in none.
    """,
    strategy=Strategy(
        estimator=ConfidenceEstimator(epochs=10, where="server", normalise="sum"),
        arranger=FedSeqArranger(grouping="greedy", tau="kl", min_samples=800, max_devices=11),
        schedule=EveryRound(rearrange_every=0, fraction=0.2, order="shuffled"),
        training=Training(lr=0.01, weight_decay=4e-4, batch=64),
    ),
)
FEDSEQ_PROX = Named(
    name="fedseq-prox",
    title="FedSeq with FedProx",
    summary="fedseq that stays close to the predecessor's model",
    paper=PAPER,
    text="""
    `fedseq` whose devices minimise l + mu/2 |w - w_in|^2, mu = 0.01: the model received from the predecessor replaces
    the global one.

    Failures are handled as in `fedseq`; after a lost visit w_in is the model of the last accepted visit.
    """,
    strategy=replace(FEDSEQ.strategy, objective=Prox(mu=0.01)),
)
FEDSEQ_DYN = Named(
    name="fedseq-dyn",
    title="FedSeq with FedDyn",
    summary="fedseq if its superclients still differ: with FedDyn",
    paper=PAPER,
    text="""
    `fedseq` with FedDyn's devices, a = 0.1, w_in the model received from the predecessor, and FedDyn's server: a tour
    contributes w_tour - w_prev, since its visits telescope, and N counts devices. Signs are those of FedDyn's paper: in
    FedSeq's paper, equation 6 flips the sign of the linear term, and equation 7 omits the old h.

    h_k and h change only with accepted visits, as in `feddyn`; tours fail as in `fedseq`. If a tour is lost with its
    site after some of its visits were accepted, their h_k are ahead of h.
    """,
    strategy=replace(FEDSEQ.strategy, objective=Dyn(a=0.1), aggregator=DynServer()),
)
FEDSEQ_INTER = Named(
    name="fedseq-inter",
    title="FedSeqInter",
    summary="very skewed data: fedseq that merges rarely",
    paper=PAPER,
    text="""
    `fedseq` with as many model slots as superclients train in a round. The model of slot i tours the i-th superclient
    drawn and stays in its slot. The slots merge after N_S rounds, weighted by the samples that each has trained on
    since the last merge (Algorithm 1, line 15, would merge after the first round). Between merges the weighted mean of
    the slots is evaluated. `merge_every = 1` is FedSeq.

    A lost visit costs its hop and its samples. A tour that fails or is late leaves its slot's model and count as they
    were, and the slot merges with these. A slot without samples since the last merge has no weight. A device that
    leaves for good makes its superclient smaller; if fewer superclients remain, fewer slots travel and the others pause
    until the merge.
    """,
    strategy=replace(FEDSEQ.strategy, schedule=Slots(merge_every=0, rearrange_every=0, fraction=0.2, order="shuffled")),
)
FEDSEQ_INTER_PROX = Named(
    name="fedseq-inter-prox",
    title="FedSeqInter with FedProx",
    summary="fedseq-inter if models forget: stays close to predecessor",
    paper=PAPER,
    text="""
    `fedseq-inter` whose devices minimise l + mu/2 |w - w_in|^2 with w_in the predecessor's model. mu = 1: models that
    rarely merge should keep more of what their predecessor learned.

    Failures are handled as in `fedseq-inter`; a device keeps no state between visits.
    """,
    strategy=replace(FEDSEQ_INTER.strategy, objective=Prox(mu=1.0)),
)
FEDSEQ_INTER_DYN = Named(
    name="fedseq-inter-dyn",
    title="FedSeqInter with FedDyn",
    summary="fedseq-inter if its models disagree: with FedDyn",
    paper=PAPER,
    text="""
    `fedseq-inter` with FedDyn's devices, a = 1, and FedDyn's server at each merge: w_prev is the model of the last
    merge, and a slot contributes its whole change since then.

    h_k changes with every accepted visit, h only at a merge. So h is the mean of the h_k at merges, and lags behind
    them between merges. Slots fail as in `fedseq-inter`, devices as in `feddyn`.
    """,
    strategy=replace(FEDSEQ_INTER.strategy, objective=Dyn(a=1.0), aggregator=DynServer()),
)
