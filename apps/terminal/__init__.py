"""What commands show in a terminal: tables, progress, training as it goes."""
