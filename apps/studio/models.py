"""The inputs of a view's numbers: the model, its task, and the fill of ablated heads.

The functions import torch; this module does not. All sessions share the models, and no code may
change one: an ablation is an argument of the forward pass.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import streamlit as st

from apps.studio.address import View
from lab.naming import parse_head
from lab.run_folders import Run

if TYPE_CHECKING:
    from lab.gates import Donors, GateTensors, HeadGates, Reference
    from lab.hooked_gpt import HookedGPT
    from lab.tasks.base import Batch, Task
    from probes.ablation.sweep import Ablation

REFERENCE_SEQUENCES = 256
"""Sequences whose mean fills the gap of a head in mode 'mean'."""

BY_CHECKPOINT: dict[str | type[Any], Callable[[Any], Any]] = {View: lambda view: view.identity}
"""For Streamlit's caches: a result that depends on the checkpoint alone."""
BY_ABLATION: dict[str | type[Any], Callable[[Any], Any]] = {View: lambda view: view.ablation}
"""A result that depends on the ablated heads too."""


@st.cache_resource(max_entries=4, show_spinner="Loading the model", hash_funcs=BY_CHECKPOINT)
def weights(view: View) -> "HookedGPT":
    """Return a checkpoint's model; all sessions share it, so do not change it."""
    from lab.hooked_gpt import HookedGPT

    return HookedGPT.load(view.run.checkpoint(view.step)).eval().requires_grad_(False)


def task_of(run: Run) -> "Task":
    """Return the task that a run was trained on."""
    from lab.tasks.registry import get_task

    config = run.config
    return get_task(config.task, length=config.length, n_symbols=config.n_symbols)


def unseen(run: Run) -> "Batch":
    """Return the sequences that a run's training was evaluated on."""
    config = run.config
    return task_of(run).sample(config.eval_sequences, seed=config.seed, split="test")


def kept_for_filling(run: Run) -> "Batch":
    """Return the sequences whose outputs replace a head's; nothing is measured on them."""
    return task_of(run).sample(REFERENCE_SEQUENCES, seed=run.config.seed, split="reference")


@st.cache_resource(max_entries=8, show_spinner=False, hash_funcs=BY_CHECKPOINT)
def reference(view: View, *, constant: bool) -> "Reference":
    """Return the mean of every head over the task's reference sequences.

    With `constant`, it is the mean over positions too, which pruning can fold into a bias.
    """
    from probes.ablation.table import mean_reference

    return mean_reference(weights(view), kept_for_filling(view.run), per_position=not constant)


@st.cache_resource(max_entries=4, show_spinner=False, hash_funcs=BY_CHECKPOINT)
def donors(view: View) -> "Donors":
    """Return every head's output on the sequences that `headlab ablate` resamples."""
    from apps.scored_sequences import DONORS
    from probes.ablation.table import head_donors

    return head_donors(weights(view), kept_for_filling(view.run)[:DONORS])


def ablation_of(view: View, *, constant: bool = False) -> "Ablation":
    """Return the view's ablation as the argument of a sweep."""
    from probes.ablation.sweep import Ablation

    return Ablation(
        mode=view.mode,
        value=view.gate,
        reference=reference(view, constant=constant) if view.mode == "mean" else None,
        donors=donors(view) if view.mode == "resample" else None,
    )


def gates_of(view: View) -> "HeadGates | GateTensors | None":
    """Return the view's ablation as the argument of forward; None without ablated heads.

    One pass has one fill; in mode resample it is the first donor.
    """
    if not view.ablated:
        return None
    from lab.gates import HeadGates

    model, heads = weights(view), heads_of(view)
    if view.mode == "zero":
        return HeadGates.ablate(heads, like=model, value=view.gate)
    mean = view.mode == "mean"
    fill = reference(view, constant=False) if mean else donors(view).references()[0]
    return HeadGates.ablate(heads, like=model, fill=fill, value=view.gate).tensors(model, [fill])


def heads_of(view: View) -> list[tuple[int, int]]:
    """Return the ablated heads as (layer, head)."""
    return [parse_head(label) for label in view.ablated]
