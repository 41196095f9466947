"""Where an optional extra is not installed, its files are left out of the collection."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/fedvarp/flower/*", "tests/flower/*"]
