"""The command line: a thin skin over the rest of the package."""
