"""Heads removed for good: which, in which order, at what cost."""
