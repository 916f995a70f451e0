"""People's doors to lab and probes: the command line and the app. No number is computed here."""
