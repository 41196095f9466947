"""Federated learning in which few clients take part each round, and nothing is lost by that."""
