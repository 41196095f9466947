"""What is raised where a run directory cannot be used."""

from fedvarp.errors import FedvarpError


class RunError(FedvarpError):
    """A run directory is missing, damaged, taken, or holds another run."""
