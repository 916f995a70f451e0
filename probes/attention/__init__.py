"""Where heads look."""
