"""Training as a film: head scores over steps."""
