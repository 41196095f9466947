"""The presets: one page of settings each, opening with what it reproduces."""
