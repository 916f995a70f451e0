"""The commands of `headlab`, a module each: a form that tyro fills in, and what is done with it."""
