"""All tables of one model on one input: what a command line, or a nightly job, writes in one go.

The input is `CheckedSequences`, and the model's weights are known to be finite: nothing is checked
here. The module that makes a table defines it.
"""

from collections.abc import Iterable

import pandas as pd
from torch import Tensor

from probes.attention.entropy import entropy_table, row_sums
from probes.attention.heads import scores_table
from probes.attention.offsets import longest_offset, offset_mass, spectrum_table
from probes.attention.targets import ProbeInput
from probes.labels.head_labels import study_of
from probes.reading.checked_sequences import CheckedSequences
from probes.reading.observed_model import ReadableModel, checked_input, measured_layers
from probes.reading.pattern_reads import LayerReads
from probes.writing.copying import copying_table, sample_tokens
from probes.writing.values import ValueSums, value_measure, values_table


def label_tables(
    model: ReadableModel, checked: CheckedSequences, *, seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Return the labels of all heads, and the evidence behind each, by the tables' names."""
    study = study_of(model, checked, seed=seed)
    return {"labels": study.labels, "evidence": study.evidence}


def score_table(
    model: ReadableModel,
    checked: CheckedSequences,
    probes: Iterable[str] | None = None,
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the scores of all heads; on repeated blocks with those of their control."""
    frame = scores_table(model, checked.x, probes, control=checked.control, seed=seed)
    if checked.on_pair and checked.pair is not None:
        frame.attrs["input"] = checked.pair.description
    return frame


def more_tables(
    model: ReadableModel, checked: CheckedSequences, *, seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Return the tables beside the labels: heads, entropy, spectrum, values and copying."""
    sample = checked_input(model, sample_tokens(model, seed=seed))
    return {
        "heads": score_table(model, checked, seed=seed),
        **one_pass_tables(model, checked.x, seed),
        "copying": copying_table(model, sample),
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
