"""The studio: the lab in a browser, on this machine only."""
