"""The algorithms: what came back → the server direction v, one file each.

With rows y_i (zero until written), ȳ their mean over all N clients, and Δ_i what client i sent, all
of them are ``v = β·ȳ + Σ_{i∈S} a_i (Δ_i − β·y_i)``, then ``y_i ← Δ_i`` for i ∈ S:

| algorithm      | a_i | β | rows                                                               |
|----------------|-----|---|--------------------------------------------------------------------|
| FedAvg         | 1/M | 0 | none                                                               |
| FedVARP        | 1/M | 1 | one per client                                                     |
| ClusterFedVARP | 1/M | 1 | one per cluster; a put averages the clients of a cluster           |
| MIFA           | 1/N | 1 | one per client                                                     |
| FedStale       | 1/M | a number | one per client                                              |
| measured rows  | 1/M | 1 | Σ_k b_k y_i⁽ᵏ⁾ of the client's own row, its cluster's, b measured  |
| rows of a part | 1/M | 1 | zero but for some of the numbers, such as the last layer           |
| SCAFFOLD       | 1/M | 0 | c_i; clients add c̄ − c_i to each gradient; c_i ← Δ_i − that        |
| FedProx        | 1/M | 0 | none; clients add μ (w_i − w) to each gradient                     |

Where the mean over S is a trimmed mean or a median (`TrimmedMean`), the 1/M Σ of FedVARP is one.
FedDyn stands beside them: clients add α (w_i − w) − h_i to each gradient, h_i ← h_i − α (w_i − w),
and v = 1/M Σ Δ_i + h̄ / (α·scale).

1/M stands for p_i / π_i where clients have weights or are sampled with unequal chances.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
