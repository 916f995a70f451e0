"""Which earlier heads feed a later one."""
