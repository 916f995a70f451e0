"""Everything about one model in one folder, for people."""
