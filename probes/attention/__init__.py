"""Where heads attend."""
