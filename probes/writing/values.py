"""How much each head writes, and how much of it comes from the first position.

A head that rests on the first token reads a value there; if that value is close to zero, the head
is off, whatever its pattern looks like. Norms are of what a head adds to the residual stream,
z W_O, without the layer's common bias b_O.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lab.attention import share_keys
from lab.attention_reads import take_positions
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.attention.targets import ProbeInput
from probes.labels.rules import CUTS
from probes.reading.observed_model import (
    ReadableModel,
    head_ids,
    measured_layers,
    probe_input,
    provenance,
)
from probes.reading.pattern_reads import LayerReads
from probes.schemas.heads import VALUES
from probes.tables import make_table
from probes.writing.head_weights import output_weights, written_shape

PerHead = Float64[Tensor, "batch head"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueSums:
    """What a layer's heads write, summed over the rows of each sequence after the first position.

    On the CPU.
    """

    sink_mass: PerHead
    """Attention on the first position."""
    sink_norm: PerHead
    """Norm of what is read there: A[q, 0] |v_0 W_O|."""
    output_norm: PerHead
    """Norm of all that is read: |sum_k A[q, k] v_k W_O|."""
    n_rows: Int[Tensor, " batch"]
    """Rows that were summed."""


def head_values(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    *,
    attention_mask: GivenMask | None = None,
) -> pd.DataFrame:
    """Measure how much each head writes: one row per layer and head.

    Means over the rows q >= 1 of every sequence. sink_mass = A[q, 0]; output_norm = |z_q W_O|;
    sink_value_share = mean A[q, 0] |v_0 W_O| / mean |z_q W_O|, the share of the output that comes
    from the first position (above 1 where the rest cancels part of it); layer_share = output_norm /
    its median over the layer's heads; silent = layer_share below CUTS.silent_share, or no output.

    Range: masses from 0 to 1; shares from 0, and above 1 where the rest cancels part of the sink.

    Source: Kobayashi et al. 2020, Attention is not only a weight.

    Caveat: A large output may not matter to the answer: ablate the head.

    Args:
        model: A HookedGPT, or a TransformerLens model that shows values and output weights.
        batch_or_tokens: A task's batch, or plain tokens.
        attention_mask: True (or 1) at real tokens; "first" means the first real one.

    Raises:
        ValueError: The input is empty, or the model does not show its values head by head.
    """
    x = probe_input(model, batch_or_tokens, attention_mask=attention_mask)
    return values_table(model, x, measured_layers(model, x, value_measure(model)))


def value_measure(
    model: ReadableModel,
) -> Callable[[int, LayerReads, ProbeInput], ValueSums]:
    """Return `value_sums` for the layers of a model, whose weights it reads once."""
    shapes: dict[int, Float[Tensor, "head d_value rank"]] = {}

    def measure(layer: int, reads: LayerReads, part: ProbeInput) -> ValueSums:
        if layer not in shapes:
            shapes[layer] = written_shape(output_weights(model, layer))
        return value_sums(reads, part, shapes[layer])

    return measure


def values_table(
    model: ReadableModel, x: ProbeInput, layers: Mapping[int, list[ValueSums]]
) -> pd.DataFrame:
    """Return the table of `head_values` from what `value_sums` found.

    Args:
        model: The model.
        x: The whole input.
        layers: The sums of each layer, a slice of the input after the other.
    """
    parts = [
        value_columns(layer, head_ids(model, layer, found[0].sink_mass.shape[1]), found)
        for layer, found in layers.items()
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in VALUES.names}
    return make_table(columns, VALUES, provenance(model, x.tokens))


def value_sums(
    reads: LayerReads, x: ProbeInput, shape: Float[Tensor, "head d_value rank"]
) -> ValueSums:
    """Return what one layer's heads write on some sequences.

    Args:
        reads: The layer.
        x: The sequences.
        shape: `written_shape` of the layer's output weights (or these themselves, which is slower).

    Raises:
        ValueError: The model did not show its values.
    """
    batch, n_pos = x.tokens.shape
    rows, first = x.later_rows(), x.first_real()
    every = torch.arange(n_pos, device=reads.device).expand(batch, -1)
    sink = reads.cells(every, first.expand(-1, n_pos))
    z = reads.mean_value()
    shape = shape.to(z)
    if reads.values is None:
        raise ValueError("values must be shown by hook_v of the model, got none")
    v_first = share_keys(take_positions(reads.values, first), reads.n_heads)
    first_norm = norms(v_first, shape)
    summed = [
        torch.where(rows.unsqueeze(1), each, 0.0).sum(dim=2).cpu().double()
        for each in (sink, sink * first_norm, norms(z, shape))
    ]
    return ValueSums(
        sink_mass=summed[0],
        sink_norm=summed[1],
        output_norm=summed[2],
        n_rows=rows.sum(dim=1).cpu(),
    )


def norms(
    z: Float[Tensor, "batch pos head d_value"], shape: Float[Tensor, "head d_value rank"]
) -> Float[Tensor, "batch head pos"]:
    """Return the length of what each head writes."""
    pattern = "batch pos head d_value, head d_value rank -> batch head pos rank"
    return einsum(z, shape, pattern).norm(dim=-1)


def value_columns(
    layer: int, heads: tuple[int, ...], found: list[ValueSums]
) -> dict[str, np.ndarray]:
    """Return one layer's columns from what `value_sums` made of each slice."""
    n_rows = sum(int(sums.n_rows.sum()) for sums in found)
    n_sequences = sum(int((sums.n_rows > 0).sum()) for sums in found)
    totals = [
        sum(getattr(sums, name).sum(dim=0).numpy() for sums in found)
        for name in ("sink_mass", "sink_norm", "output_norm")
    ]
    with np.errstate(invalid="ignore", divide="ignore"):
        sink_mass, sink_norm, output_norm = (np.asarray(total) / n_rows for total in totals)
        share = np.where(output_norm > 0, sink_norm / output_norm, np.nan)
        median = np.median(output_norm) if len(heads) else np.nan
        of_layer = output_norm / median if median > 0 else np.full(len(heads), np.nan)
        silent = (output_norm < CUTS.silent_share * median) | (output_norm == 0)
    size = len(heads)
    return {
        "layer": np.full(size, layer),
        "head": np.array(heads, dtype=np.int64),
        "sink_mass": sink_mass,
        "sink_value_share": share,
        "output_norm": output_norm,
        "layer_share": of_layer,
        "silent": silent,
        "n_sequences": np.full(size, n_sequences),
        "n_rows": np.full(size, n_rows),
        "unit": np.full(size, "mean norm"),
    }
