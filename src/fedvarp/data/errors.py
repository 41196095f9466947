"""The one exception for data that is missing, broken, or not what it should be."""


class DataError(Exception):
    """A file or a client's data cannot be used; the message says what to do about it."""
