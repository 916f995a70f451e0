"""What heads write, and what the model says next."""
