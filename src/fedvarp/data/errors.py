"""The exception for data that is missing, broken, or not what it should be."""

from fedvarp.errors import FedvarpError


class DataError(FedvarpError):
    """A file or a client's data cannot be used; the message says what to do about it."""


class MissingDataError(DataError):
    """There is no such file: the one case in which a download helps."""
