"""The schemas of all tables that probes return, by the question that they answer."""
