from .directory import RunDirectory as RunDirectory
from .divergence import Verdict as Verdict
from .divergence import judged as judged
from .errors import RunError as RunError
from .finished import is_finished as is_finished
from .identity import differences as differences
from .journal import Journal as Journal
