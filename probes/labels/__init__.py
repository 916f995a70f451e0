"""What heads are called, and on which evidence."""
