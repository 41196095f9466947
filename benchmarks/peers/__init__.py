"""Other simulators on the same workloads, each in an environment of its own: `make bench-peers`."""
