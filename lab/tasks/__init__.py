"""Synthetic tasks with known answers: one file a task, listed in `lab.tasks.registry`.

Nothing here imports torch, so that the list of tasks can be shown without waiting for it.
"""
