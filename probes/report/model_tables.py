"""All tables of one model on one input: what a command line, or a nightly job, writes in one go.

The input is a task's batch, plain tokens, or nothing: then it is random tokens said twice, beside
their control. What each table means stands in the module that makes it.
"""

from collections.abc import Iterable

import pandas as pd
from torch import Tensor

from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.attention.entropy import entropy_table, row_sums
from probes.attention.heads import score_heads
from probes.attention.offsets import longest_offset, offset_mass, spectrum_table
from probes.attention.targets import ProbeInput
from probes.labels.study import label_study
from probes.reading.inputs import repeated_pair
from probes.reading.pattern_reads import LayerReads
from probes.reading.reads import ReadableModel, measured_layers, probe_input
from probes.writing.copying import copying_scores
from probes.writing.values import ValueSums, value_measure, values_table

Sequences = Batch | Tokens | None
"""None: repeated sequences, drawn by seed."""


def label_tables(
    model: ReadableModel,
    sequences: Sequences,
    *,
    attention_mask: GivenMask | None = None,
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
        ValueError: As `probes.labels.study.label_heads`.
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
    attention_mask: GivenMask | None = None,
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
    attention_mask: GivenMask | None = None,
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
    x = probe_input(model, read, special_ids, attention_mask)
    return {
        "heads": heads,
        **one_pass_tables(model, x, seed),
        "copying": copying_scores(model, seed=seed),
    }


def one_pass_tables(model: ReadableModel, x: ProbeInput, seed: int) -> dict[str, pd.DataFrame]:
    """Return the tables of entropy, spectrum and values from one forward pass."""
    n_offsets = 1 + longest_offset(x.tokens.shape[1], None)
    written = value_measure(model)

    def measure(
        layer: int, reads: LayerReads, part: ProbeInput
    ) -> tuple[Tensor, Tensor, ValueSums]:
        return (
            row_sums(reads, part),
            offset_mass(reads, part, n_offsets),
            written(layer, reads, part),
        )

    entropy: dict[int, list[Tensor]] = {}
    offsets: dict[int, list[Tensor]] = {}
    values: dict[int, list[ValueSums]] = {}
    for layer, parts in measured_layers(model, x, measure).items():
        entropy[layer] = [of_rows for of_rows, _, _ in parts]
        offsets[layer] = [of_offsets for _, of_offsets, _ in parts]
        values[layer] = [of_values for _, _, of_values in parts]
    return {
        "entropy": entropy_table(model, x, entropy),
        "spectrum": spectrum_table(model, x, offsets, seed),
        "values": values_table(model, x, values),
    }
