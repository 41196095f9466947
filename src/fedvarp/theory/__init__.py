"""Which error holds training back: the paper's theorems as numbers.

`error_terms` splits the bound on min E‖∇f(w)‖² by cause; `conditions` says whether the learning
rates are within the theorem; `corollary` gives the rates that the paper prescribes. All three are
about a `Problem`, whose constants `measure` finds on your own data and model. `cluster_curve` shows
what clusters of clients would leave of σ_g², and `measure_updates` the error of a server step with
no bound involved.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
