"""What the package costs, measured. Every speed is a ratio to a baseline timed in the same run."""
