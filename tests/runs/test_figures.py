"""What a run is judged by."""

from __future__ import annotations

import math

from fedvarp.runs.figures import late_mean


def test_losses_whose_sum_no_float_can_hold_have_an_infinite_mean() -> None:
    records = [{"round": t, "train_loss": 1.5e308} for t in range(10)]
    assert late_mean(records, "train_loss") == math.inf
