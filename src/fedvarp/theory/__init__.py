"""Which error holds training back: the paper's theorems as numbers.

`error_terms` splits the bound on min E‖∇f(w)‖² by cause; `conditions` says whether the learning
rates are within the theorem; `corollary` gives the rates that the paper prescribes. `measure` finds
the constants of a problem, and `curve` what clusters of clients would leave of σ_g².
"""

from fedvarp.theory.cluster_curve import curve
from fedvarp.theory.conditions import Condition, conditions
from fedvarp.theory.corollaries import Corollary, corollary
from fedvarp.theory.error_terms import ErrorTerms, error_terms
from fedvarp.theory.measurements import Measurements, measure
from fedvarp.theory.participation import chance_of_absence, sampling_variance

__all__ = [
    "Condition",
    "Corollary",
    "ErrorTerms",
    "Measurements",
    "chance_of_absence",
    "conditions",
    "corollary",
    "curve",
    "error_terms",
    "measure",
    "sampling_variance",
]
