"""SCAFFOLD.

Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich and Ananda Theertha Suresh:
"SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.

Device k steps along g - c_k + c and, by option II, ends with c_k' = c_k - c + (w_in - w_out) / (steps·lr). It returns
c_k' - c_k; the server adds (1/N)·sum of these to c, and x <- x + eta_g·(mean(w_k) - x) with the uniform mean and eta_g
= 1. N counts all devices that the job has had, not only those of the round; when one is new, c is spread over more.
Option II assumes plain SGD: momentum and Adam are refused. The paper's batches are a fifth of a device's data; ours is
a number.

A visit that was lost, refused by the gate or answered too late changes neither c_k nor c: a device keeps c_k' only when
its result was accepted, and only then does its difference count, so c = (1/N)·sum(c_k). Only a site that is lost with
accepted results on it leaves their c_k ahead of c. A visit without a step leaves c_k as it is. A device that vanished
for good leaves its share in c for good: the others go on being corrected towards data that nobody has any more. Start a
new job where that matters. One that was set up anew starts with c_k = 0, and says that it lost its memory.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import Scaffold, ScaffoldServer

SUMMARY = "skewed data, steady devices; corrects drift, twice the bytes"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY, objective=Scaffold(), aggregator=ScaffoldServer(lr=1.0, weighting="uniform")
)
