from .directory import Journal as Journal
from .directory import RunDirectory as RunDirectory
from .directory import RunError as RunError
