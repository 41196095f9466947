from .auto import AutoTrainer as AutoTrainer
from .base import ClientTrainer as ClientTrainer
from .parallel import ParallelTrainer as ParallelTrainer
from .ray import RayTrainer as RayTrainer
from .sequential import SequentialTrainer as SequentialTrainer
from .settings import Trainer as Trainer
from .vectorised import VectorisedTrainer as VectorisedTrainer
