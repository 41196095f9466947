from .loggers import Logger as Logger
from .loggers import MLflowLogger as MLflowLogger
from .loggers import TensorBoardLogger as TensorBoardLogger
from .round_loop import Callback as Callback
from .round_loop import SimulationResult as SimulationResult
