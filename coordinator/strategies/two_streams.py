"""FedAvg whose devices also use frozen models, or samples of a generator."""

from msgspec.structs import replace

from coordinator.strategies.fedavg import FEDAVG
from coordinator.strategies.strategy import Named, Strategy
from sojourn.parts import (
    Fusion,
    FusionMean,
    Generated,
    GeneratorServer,
    Mmd,
    Moon,
    SingleArranger,
    Training,
    WeightedMean,
)

FEDMMD = Named(
    name="fedmmd",
    title="FedMMD",
    summary="skewed data: outputs stay close to the received model's",
    paper="""
    Xin Yao, Chaofeng Huang and Lifeng Sun: "Two-Stream Federated Learning: Reduce the Communication Costs", VCIP 2018.
    """,
    text="""
    FedAvg whose devices minimise CE(f(w,x), y) + lambda·max(1e-4, MMD2(f(w_in,x), f(w,x))), with w_in the model
    received and the same batch in both streams, neither of them with dropout. MMD2 = mean k(A,A) + mean k(B,B) - 2·mean
    k(A,B) over all pairs of rows; k(a,b) = sum of exp(-|a-b|^2/(2s)) over 19 widths s from 1e-6 to 1e6: 2s, not 2s^2,
    as in the authors' code, which compares logits. Below the floor there is no gradient, so the first step is FedAvg's.
    lambda = 0 is FedAvg.

    The paper does not state lambda and the layer. In the authors' code the line with MMD is commented out, with 0.1 for
    MNIST. The active line is `objective.distance = "l2"`, half the sum of |f - f_in|^2 over a batch times 1e-3 (MNIST)
    or 0.01 (CIFAR); set `objective.weight = 0.001` for it. Others compare `objective.layer = "penultimate"` with
    `objective.distance = "mmd-relative"`, whose widths scale with the mean distance. The authors merge uniformly: set
    `aggregator.name = "uniform-mean"` for that. Here models are weighted by samples, as in `fedavg`, for comparison. lr
    = 2e-3, batch 128 and E = 2 are the paper's values for CIFAR-10; its decay (0.999 a round) is not built.

    In a tour w_in is the predecessor's model; `objective.anchor = "round"` takes the round's. A device keeps no state
    between visits, so lost, late and departed devices are handled as in `fedavg`.
    """,
    strategy=replace(FEDAVG.strategy, objective=Mmd(weight=0.1), training=Training(epochs=2, batch=128, lr=2e-3)),
)
MOON = Named(
    name="moon",
    title="MOON",
    summary="skewed images: pulls features towards the global model's",
    paper="""
    Qinbin Li, Bingsheng He and Dawn Song: "Model-Contrastive Federated Learning", CVPR 2021.
    """,
    text="""
    FedAvg whose devices minimise CE(f(w,x), y) + mu·CE([cos(p,p_glob), cos(p,p_prev)]/tau, 0): their representations p
    are pulled towards those of the model received, and pushed away from those of the device's own last model. p is the
    output of two linear layers before the last one (256 numbers). They are a part of the model, so mu = 0 is FedAvg
    *with the projection*; `objective.projection = 0` compares the input of the last layer of the unchanged model. mu =
    5, tau = 0.5, lr = 0.01, momentum 0.9, weight decay 1e-5, batch 64 and E = 10 are the paper's values for CIFAR-10;
    mu is tuned from 0.001 to 10.

    The device keeps the model that it sent back only if it was accepted. After a visit that was lost, late or refused
    by the gate, p_prev is still that of the last accepted visit. A first visit has no p_prev and is FedAvg's; so is
    that of a device that was set up again, which reports that it lost its memory. In a tour p_glob is that of the
    predecessor's model; `objective.anchor = "round"` takes the round's.
    """,
    strategy=replace(
        FEDAVG.strategy,
        objective=Moon(mu=5.0, tau=0.5),
        training=Training(epochs=10, batch=64, lr=0.01, momentum=0.9, weight_decay=1e-5),
    ),
)
FEDFUSION = Named(
    name="fedfusion",
    title="FedFusion",
    summary="image models: fuses trunk features with the received ones",
    paper="""
    Xin Yao, Tianchi Huang, Chenglei Wu, Ruixiao Zhang and Lifeng Sun: "Towards Faster and Better Federated Learning: A
    Feature Fusion Approach", ICIP 2019.
    """,
    text="""
    Devices minimise CE(h(F(l, g)), y) with l = E(w,x) of the trunk that is trained and g = E(w_in,x) of the received
    trunk, frozen. The fusion F is trained and travels in the model. It is gamma·g + (1 - gamma)·l with one number
    (`objective.operator = "single"`) or one for each channel (`objective.operator = "multi"`), from gamma = 0, or a 1x1
    convolution of both (`objective.operator = "conv"`), which starts as l alone. gamma frozen at 0 would be FedAvg. The
    server takes the uniform mean of all, and then sends gamma <- 0.1·mean + 0.9·previous gamma; with
    `aggregator.smoothing = 0` it sends the mean.

    The *fused* model of a round is tested, with w_in as its frozen trunk, as in the paper. With `objective.evaluate =
    "same"` the model is its own frozen trunk, which for single and multi is the plain model for any gamma. A release
    contains that model, and the gate checks it. lr = 5e-3, momentum 0.9 (here it starts at zero at each visit), weight
    decay 5e-4, batch 64 and E = 5 are the authors' values for CIFAR-10; the decay of lr (0.99 a round) is not built.
    Their code starts devices that skipped a round from a stale model; that mistake is not built either.

    In a tour g is that of the predecessor's trunk; `objective.anchor = "round"` takes the round's. A device keeps no
    state between visits, so lost, late and departed devices are handled as in `fedavg`. Without any result gamma stays
    as it is.
    """,
    strategy=replace(
        FEDAVG.strategy,
        objective=Fusion(operator="multi"),
        aggregator=FusionMean(smoothing=0.9, weighting="uniform"),
        training=Training(epochs=5, batch=64, lr=5e-3, momentum=0.9, weight_decay=5e-4),
    ),
)
FEDGEN = Named(
    name="fedgen",
    title="FedGen",
    summary="skewed data: a generator supplies other devices' classes",
    paper="""
    Zhuangdi Zhu, Junyuan Hong and Jiayu Zhou: "Data-Free Knowledge Distillation for Heterogeneous Federated Learning",
    ICML 2021.
    """,
    text="""
    FedAvg whose server trains a generator of inputs for the model's last layer, from the last layers that devices sent.
    The server sends the generator with the model. From the second round on a device also learns from generated inputs,
    with a = b = 10, both multiplied by 0.98 each round. The generator takes 50 steps of Adam a round, with lr 3e-4. The
    values are from the authors' code for MNIST; the paper has no second term (b = 0). Devices report how many samples
    of each class they saw, which needs their owners' consent.

    Lost, late and departed devices are skipped as in `fedavg`. If every visit of a round is lost, neither the model nor
    the generator changes. Models with BatchNorm are refused: their running statistics would not include generated
    inputs.
    """,
    strategy=Strategy(
        arranger=SingleArranger(fraction=1.0),
        objective=Generated(),
        aggregator=WeightedMean(),
        finisher=GeneratorServer(),
        training=Training(lr=0.01, batch=32),
    ),
)
