"""Which objective a run optimises, in a sentence.

Plain differences weigh a client by its steps, nearly by its examples; normalised ones do not. Where
all clients take equally many steps there is no difference.
"""

from __future__ import annotations

import torch

from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.data.federated_dataset import FederatedDataset


def objective(
    local_sgd: LocalSGD, dataset: FederatedDataset, *, counts_steps: bool = True, weighted: bool
) -> str:
    """Says what a run minimises, and why.

    Args:
        local_sgd: What a client does.
        dataset: Whose sizes decide the numbers of steps.
        counts_steps: As the algorithm says it (`Aggregator.counts_steps`).
        weighted: Whether the sampler gives clients unequal weights p_i in the objective.

    Returns:
        A noun phrase.

    >>> from fedvarp.data import digits
    >>> sgd = LocalSGD(lr=0.1, batch_size=8, steps=5)
    >>> objective(sgd, digits(), weighted=False)
    'the mean loss over clients, each counted once (all take 5 steps)'
    """
    by_weight = "by its weight" if weighted else "once"
    fewest, most = _fewest_and_most_steps(local_sgd, dataset)
    how_many = "" if most is None else f", {fewest} to {most}"
    if fewest == most:
        counted, why = by_weight, f"all take {most} step{'s' if most != 1 else ''}"
    elif local_sgd.normalise_steps:
        counted, why = by_weight, f"updates are divided by the steps{how_many}"
    elif not counts_steps:
        counted, why = by_weight, "control variates make up for unequal steps"
    else:
        counted = (
            f"by its weight times its steps{how_many}" if weighted else f"by its steps{how_many}"
        )
        why = "updates are model differences; local_sgd.normalise_steps counts clients alike"
    return f"the mean loss over clients, each counted {counted} ({why})"


def _fewest_and_most_steps(
    local_sgd: LocalSGD, dataset: FederatedDataset
) -> tuple[int | None, int | None]:
    """Of all clients; (0, None) if nobody knows without loading them."""
    if local_sgd.steps is not None:
        return local_sgd.steps, local_sgd.steps
    if dataset.num_examples is None:
        return 0, None
    extremes = torch.aminmax(dataset.num_examples)
    fewest, most = (len(local_sgd.batch_sizes(int(n))) for n in extremes)
    return fewest, most
