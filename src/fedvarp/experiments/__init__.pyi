from .build import Experiment as Experiment
from .files import load_settings as load_settings
from .settings import Settings as Settings
from .sweep import Sweep as Sweep
from .sweep_result import SweepResult as SweepResult
