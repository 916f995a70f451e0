"""Models and sequences, as probes read them."""
