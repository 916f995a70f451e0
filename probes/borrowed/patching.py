"""Activation patching: how much of an answer comes back with one activation of the clean run.

The patches are TransformerLens's (`transformer_lens.patching`), on a HookedGPT or a model of its
own; here are the cells to patch, the share that comes back and the table. Removing heads instead
of exchanging them is `probes.ablation.table`'s.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from transformer_lens.patching import (
    generic_activation_patch,
    layer_head_pattern_patch_setter,
    layer_head_pos_pattern_patch_setter,
    layer_head_vector_patch_setter,
    layer_pos_head_vector_patch_setter,
    layer_pos_patch_setter,
)
from transformer_lens.utilities.components_utils import get_act_name

from lab.checks import require_choice
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.borrowed.answers import Answers, asked_pairs, tokens_of
from probes.intervals import bootstrap_interval
from probes.reading.bridge import HookPointModel, pattern_layers, reading_mode
from probes.reading.observed_model import ReadableModel, config_of, head_ids, provenance
from probes.schemas.borrowed import PATCHING
from probes.tables import make_table

STREAMS = ("resid_pre", "resid_mid", "attn_out", "mlp_out")
"""Activations of a layer as a whole."""
HEADS = ("z", "q", "k", "v", "pattern")
"""Activations of its heads; k and v belong to key heads."""
ACTIVATIONS = (*STREAMS, *HEADS)

Setter = Callable[[Tensor, Sequence[int], Any], Tensor]
PerSequence = Float64[np.ndarray, " batch"]
PerCell = Float64[np.ndarray, "cell batch"]


def patch_whole_layer(corrupted: Tensor, index: Sequence[int], clean: Tensor) -> Tensor:
    """Return the clean activation at all positions, in the manner of TransformerLens's setters."""
    return clean.clone()


SETTERS: dict[tuple[str, bool], Setter] = {
    ("stream", False): patch_whole_layer,
    ("stream", True): layer_pos_patch_setter,
    ("head", False): layer_head_vector_patch_setter,
    ("head", True): layer_pos_head_vector_patch_setter,
    ("pattern", False): layer_head_pattern_patch_setter,
    ("pattern", True): layer_head_pos_pattern_patch_setter,
}
"""What TransformerLens patches with, by kind of activation and whether positions are told apart."""

AXES = {
    "stream": ("layer", "pos"),
    "head": ("layer", "pos", "head"),
    "pattern": ("layer", "head", "pos"),
}
"""How these setters want a cell to be named."""


@torch.no_grad()
def patch_activations(
    model: ReadableModel,
    clean: Batch | Tokens,
    corrupt: Batch | Tokens,
    *,
    activation: str = "z",
    by_position: bool = False,
    answers: Answers | None = None,
) -> pd.DataFrame:
    """Run the corrupt sequences with one activation of the clean ones at a time: one row each.

    share = sum(patched - corrupt) / sum(clean - corrupt) over the sequences, of the answers'
    logits: 0 if the patch does nothing, 1 if it brings the clean answer back; less than 0 and more
    than 1 occur. NaN: the two runs do not differ in the answers. A sequence counts once, by the
    mean over its rows that count, or not at all without one. Intervals resample sequences.

    One forward pass a row, with TransformerLens's progress bar on stderr.

    Range: 0 where nothing comes back, 1 where all of it does; less and more occur.

    Source: Meng et al. 2022, Locating and editing factual associations; Heimersheim and Nanda 2024;
    TransformerLens's patching.

    Caveat: The share depends on the pair: what both runs have in common cannot come back. The
    resid_mid of a TransformerBridge is refused: it holds only what the MLP reads.

    Args:
        model: A HookedGPT, pruned or not, or a TransformerLens model; it is read in evaluation
            mode.
        clean: The sequences whose activations are taken.
        corrupt: As many of the same length, which they are put into.
        activation: "resid_pre", "resid_mid", "attn_out" or "mlp_out" of a layer; "z", "q" or
            "pattern" of a head; "k" or "v" of a key head, which in grouped-query attention several
            heads share.
        by_position: Patch every position on its own (of patterns: every query row); False: all.
        answers: What comes back; None: `Answers.between(clean, corrupt)`.

    Raises:
        ValueError: The sequences do not pair up, or the model has no such activation.
    """
    require_choice("activation", activation, ACTIVATIONS)
    good, bad, asked = asked_pairs(model, clean, corrupt, answers)
    names = activation_names(model, activation)
    runner: Any = model
    with reading_mode(model):
        logits, cache = runner.run_with_cache(good, names_filter=list(names.values()))
    kind = "stream" if activation in STREAMS else "pattern" if activation == "pattern" else "head"
    cells = pd.concat(
        [
            layer_cells(layer, kind, by_position, tuple(cache[name].shape))
            for layer, name in names.items()
        ],
        ignore_index=True,
    )
    if not len(cells):
        raise ValueError(f"a model must have heads for {activation} to be patched, got none")
    kept: list[Tensor] = []

    def keep(logits: Float[Tensor, "batch pos d_vocab"]) -> Float[Tensor, " batch"]:
        """Keep the answers in the model's own dtype: TransformerLens rounds to the default one."""
        kept.append(asked(logits))
        return kept[-1]

    patch: Any = generic_activation_patch  # typed for TransformerLens's own models
    with reading_mode(model):
        patch(
            model,
            bad,
            cache,
            keep,
            SETTERS[kind, by_position],
            activation,
            index_df=cells,
            reduce="none",
            baseline=True,
        )
    # It asks once for the corrupt run, and then for each cell in turn.
    corrupt_answers, *patched = (each.cpu().double().numpy() for each in kept)
    return patching_table(
        model,
        cells,
        activation,
        pair_provenance(model, tokens_of(clean), tokens_of(corrupt)),
        equal=(good == bad).all(dim=1).cpu().numpy(),
        patched=np.stack(patched),
        clean_answers=asked(logits).cpu().double().numpy(),
        corrupt_answers=corrupt_answers,
    )


def activation_names(model: ReadableModel, activation: str) -> dict[int, str]:
    """Return the hook of an activation in each layer.

    Raises:
        ValueError: Some layer has none, or shows its middle stream only where its MLP reads it.
    """
    layers, hooks = pattern_layers(model), cast(HookPointModel, model).hook_dict
    names = {layer: get_act_name(activation, layer) for layer in layers}
    for layer, name in names.items():
        if name not in hooks:
            raise ValueError(
                f"layer {layer} must have {activation} (hook {name}) to be patched, got a layer "
                "without it: blocks without MLP have no resid_mid and mlp_out, parallel ones no "
                "resid_mid; choose another activation"
            )
        # In TransformerLens 4.3 a bridge's resid_mid is what ln2 reads: a patch there leaves the
        # stream itself as it was, and the share is that of the MLP alone.
        if activation == "resid_mid" and hooks[name].name != name:
            raise ValueError(
                f"resid_mid must be the stream itself to be patched, got {hooks[name].name}, which "
                "only the MLP reads; patch mlp_out, or load with HookedGPT.from_pretrained"
            )
    return names


def layer_cells(layer: int, kind: str, by_position: bool, shape: tuple[int, ...]) -> pd.DataFrame:
    """Return what to patch in one layer, as TransformerLens's setters index it.

    Raises:
        ValueError: The activation does not show its heads apart.
    """
    if kind != "stream" and len(shape) != 4:
        raise ValueError(
            f"activations of heads must have 4 axes to be patched, got {list(shape)} in layer "
            f"{layer}; load the weights with HookedGPT.from_pretrained"
        )
    sizes = {
        "layer": [layer],
        "head": range(shape[1] if kind == "pattern" else shape[2]),
        "pos": range(shape[2] if kind == "pattern" else shape[1]),
    }
    axes = [axis for axis in AXES[kind] if axis != "pos" or by_position]
    return pd.MultiIndex.from_product([sizes[axis] for axis in axes], names=axes).to_frame(
        index=False
    )


def patching_table(
    model: ReadableModel,
    cells: pd.DataFrame,
    activation: str,
    about: dict[str, Any],
    *,
    equal: Bool[np.ndarray, " batch"],
    patched: PerCell,
    clean_answers: PerSequence,
    corrupt_answers: PerSequence,
) -> pd.DataFrame:
    """Return the table of `patch_activations`: cells with the answers' logits of the three runs."""
    # The difference of two runs of the same tokens is rounding, and no denominator: a hook on a
    # pattern takes the model along another path.
    patched = np.where(equal, corrupt_answers, patched)
    moved, gap = patched - corrupt_answers, np.where(equal, 0.0, clean_answers - corrupt_answers)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = moved.sum(axis=1) / gap.sum()
        low, high = bootstrap_interval(moved.T, gap)
    meaningless = ~np.isfinite(share)
    share[meaningless] = low[meaningless] = high[meaningless] = np.nan
    n_cells = len(cells)
    columns = {
        "activation": [activation] * n_cells,
        "layer": cells["layer"],
        "head": original_heads(model, activation, cells),
        "pos": cells["pos"] if "pos" in cells else [pd.NA] * n_cells,
        "clean": np.full(n_cells, clean_answers.mean()),
        "corrupt": np.full(n_cells, corrupt_answers.mean()),
        "patched": patched.mean(axis=1),
        "share": share,
        "ci_low": low,
        "ci_high": high,
        "n_sequences": np.full(n_cells, len(gap)),
        "unit": ["logits"] * n_cells,
    }
    return make_table(columns, PATCHING, about)


def original_heads(model: ReadableModel, activation: str, cells: pd.DataFrame) -> list[Any]:
    """Return the original id of the head in each cell; NA: it has none."""
    if "head" not in cells:
        return [pd.NA] * len(cells)
    config, pairs = config_of(model), cells[["layer", "head"]].to_numpy().tolist()
    if config is not None and activation in ("k", "v"):
        return [config.kv_heads_of(layer)[head] for layer, head in pairs]
    return [head_ids(model, layer, head + 1)[head] for layer, head in pairs]


def pair_provenance(model: ReadableModel, clean: Tokens, corrupt: Tokens) -> dict[str, Any]:
    """Return what a table of two runs was measured on."""
    other = provenance(model, corrupt)["tokens_sha256"]
    return {**provenance(model, clean), "corrupt_tokens_sha256": other}
