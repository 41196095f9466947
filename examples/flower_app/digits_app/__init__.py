"""Handwritten digits over clients with few labels each: FedVARP as a Flower app."""
