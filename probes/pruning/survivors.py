"""What the remaining heads do after pruning: roles move to other heads."""

import pandas as pd

from lab.hooked_gpt import HookedGPT
from lab.naming import head_label
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.labels.head_labels import label_heads
from probes.reading.observed_model import require_gates
from probes.schemas.cause import SURVIVORS
from probes.tables import make_table


def survivor_labels(
    model: HookedGPT,
    pruned: HookedGPT,
    batch_or_tokens: Batch | Tokens | None = None,
    *,
    sequences: int = 64,
    seed: int = 0,
) -> pd.DataFrame:
    """Label every head that is left, in the whole model and in the pruned one.

    Source: Voita et al. 2019, where the roles of removed heads turn up in others.

    Args:
        model: The model before pruning.
        pruned: The model after, fine-tuned or not.
        batch_or_tokens: What both are read on; see `label_heads`.
        sequences: Repeated blocks that are drawn, the same for both.
        seed: Seed of the blocks.

    Raises:
        ValueError: The pruned model has a head that the other lacks; or as `label_heads`.
    """
    for each in (model, pruned):
        require_gates(each)
    had = set(model.config.heads())
    for pair in pruned.config.heads():
        if pair not in had:
            raise ValueError(
                f"heads of the pruned model must be heads of the model, got {head_label(*pair)}; "
                "give the model that it was pruned from"
            )
    before, after = (
        label_heads(each, batch_or_tokens, sequences=sequences, seed=seed)
        for each in (model, pruned)
    )
    both = after.merge(before, on=["layer", "head"], suffixes=("", "_before"))
    columns = {
        "layer": both["layer"],
        "head": both["head"],
        "before": both["label_before"],
        "before_strength": both["strength_before"],
        "before_score": both["score_before"],
        "label": both["label"],
        "strength": both["strength"],
        "score": both["score"],
        "changed": both["label"] != both["label_before"],
        "n_sequences": both["n_sequences"],
        "unit": both["unit"],
    }
    about = {str(name): value for name, value in after.attrs.items()}
    return make_table(
        {name: column.to_numpy() for name, column in columns.items()}, SURVIVORS, about
    )
