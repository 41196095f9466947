"""Who runs LocalSGD: the same protocol, the same numbers, at different speeds."""

from fedvarp.trainers.auto import AutoTrainer
from fedvarp.trainers.client_trainer import ClientTrainer
from fedvarp.trainers.parallel import ParallelTrainer
from fedvarp.trainers.sequential import SequentialTrainer
from fedvarp.trainers.vectorised import VectorisedTrainer

__all__ = [
    "AutoTrainer",
    "ClientTrainer",
    "ParallelTrainer",
    "SequentialTrainer",
    "VectorisedTrainer",
]
