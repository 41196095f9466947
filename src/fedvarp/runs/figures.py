"""The figures of an evaluation, by the names under which a round records them."""

from __future__ import annotations

from typing import Final

FIGURES: Final = (
    "test_accuracy",
    "test_loss",
    "validation_accuracy",
    "validation_loss",
    "train_loss",
    "train_loss_over_examples",
    "train_loss_over_clients",
)
"""What an evaluation may find.

Validation examples are those of the test set that were set aside to choose settings by. The
training loss is that of the objective, Σ p_i f_i; where clients hold unequally many examples it is
given over examples too, and where the p_i are unequal, as the plain mean over clients.
"""
