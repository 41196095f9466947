"""Three clients, each with a centre it pulls the model to; they need NumPy only, to start fast."""
