from .advice import advise as advise
from .figure import draw as draw
from .procedure import diagnose as diagnose
from .result import Diagnosis as Diagnosis
from .result import write_json as write_json
from .text import as_text as as_text
