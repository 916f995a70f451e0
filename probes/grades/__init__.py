"""How labels do on heads that are known."""
