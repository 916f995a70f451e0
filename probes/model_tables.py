"""All tables of one model on one input: what a command line, or a nightly job, writes in one go.

The input is a task's batch, plain tokens, or nothing: then it is random tokens said twice, beside
their control. What each table means stands in the module that makes it.
"""

from collections.abc import Iterable

import pandas as pd

from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.copying import copying_scores
from probes.entropy import entropy_profile
from probes.heads import score_heads
from probes.inputs import repeated_pair
from probes.labels import label_study
from probes.offsets import offset_spectrum
from probes.reads import Mask, ReadableModel
from probes.values import head_values

Sequences = Batch | Tokens | None
"""None: repeated sequences, drawn by seed."""


def label_tables(
    model: ReadableModel,
    sequences: Sequences,
    *,
    attention_mask: Mask | None = None,
    n_sequences: int = 64,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Return the labels of all heads, and the evidence behind each, by the tables' names.

    Args:
        model: A HookedGPT or any TransformerLens model.
        sequences: What to read it on; None: repeated sequences.
        attention_mask: Which tokens are real; None: all.
        n_sequences: Repeated sequences: classes of content are always asked of them.
        seed: Seed of the draws, the bootstrap and the sign flips.

    Raises:
        ValueError: As `probes.labels.label_heads`.
    """
    study = label_study(
        model, sequences, attention_mask=attention_mask, sequences=n_sequences, seed=seed
    )
    return {"labels": study.labels, "evidence": study.evidence}


def score_table(
    model: ReadableModel,
    sequences: Sequences,
    probes: Iterable[str] | None = None,
    *,
    attention_mask: Mask | None = None,
    n_sequences: int = 64,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the scores of all heads; on repeated sequences with those of their control."""
    if sequences is not None:
        return score_heads(model, sequences, probes, attention_mask=attention_mask, seed=seed)
    pair = repeated_pair(model, n_sequences=n_sequences, seed=seed)
    frame = score_heads(
        model,
        pair.tokens,
        probes,
        special_ids=pair.special_ids,
        control=pair.control,
        seed=seed,
    )
    frame.attrs["input"] = pair.description
    return frame


def more_tables(
    model: ReadableModel,
    sequences: Sequences,
    *,
    attention_mask: Mask | None = None,
    n_sequences: int = 64,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Return what stands beside the labels: heads, entropy, spectrum, values and copying."""
    heads = score_table(
        model, sequences, attention_mask=attention_mask, n_sequences=n_sequences, seed=seed
    )
    read, special_ids = sequences, None
    if read is None:
        pair = repeated_pair(model, n_sequences=n_sequences, seed=seed)
        read, special_ids = pair.tokens, pair.special_ids
    spectrum = offset_spectrum(
        model, read, special_ids=special_ids, attention_mask=attention_mask, seed=seed
    )
    return {
        "heads": heads,
        "entropy": entropy_profile(model, read, attention_mask=attention_mask),
        "spectrum": spectrum,
        "values": head_values(model, read, attention_mask=attention_mask),
        "copying": copying_scores(model, seed=seed),
    }
