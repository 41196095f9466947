"""Who runs LocalSGD: the same protocol, the same numbers, at different speeds."""

from fedvarp.trainers.client_trainer import ClientTrainer
from fedvarp.trainers.sequential import SequentialTrainer

__all__ = ["ClientTrainer", "SequentialTrainer"]
