"""A forward pass entered in the middle: behind the attention of a layer, with its output edited.

What a head writes is added to the residual stream, so a pass without it is the whole model's pass
up to there, less what the head wrote. One pass of the whole model is kept, and any number of edited
ones continue it: no layer below the edit, and not the attention of its own layer, runs again.
Every step is a method of `lab.blocks`; what is done with the rows is not known here.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from lab.attention import Sight
from lab.blocks import Block, ours
from lab.gates import GateTensors
from lab.inputs import checked_ids
from lab.model import GPT
from lab.passes import Pass
from lab.positions import Positions, token_positions, turns_of
from lab.shapes import HeadVectors, PositionMask, Resid, Tokens
from lab.taps import hooked_here

Edits = Float[Tensor, "run batch pos d_model"]
"""What each run adds to what a layer's attention writes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Halfway:
    """One layer of the whole model, behind its attention."""

    z: HeadVectors
    """What its heads mixed."""
    residual: Resid
    """What an edit of the attention's output is added to: the stream before the MLP, or behind the
    whole layer where the MLP does not read what the attention wrote."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WholePass:
    """What every layer of a model computed on some sequences, kept for edited passes."""

    model: GPT
    real: PositionMask | None
    first: int
    """First position that somebody reads: the last layer computes from there on only."""
    positions: Positions
    layers: tuple[Halfway, ...]
    """Every layer, the last one from `first` on."""
    rows: Float[Tensor, "batch tail d_model"]
    """The residual stream behind the last layer, from `first` on."""

    def positions_in(self, layer: int) -> Positions:
        """Return the positions of the vectors that are kept of a layer."""
        return (
            self.positions[..., self.first :] if layer == len(self.layers) - 1 else self.positions
        )


def can_be_entered(model: GPT) -> bool:
    """Tell whether the steps of a pass may be taken one by one, past the parts' own forward.

    They may where nobody listens, every part and the model run this package's forward, neither
    replaced nor wrapped, and every weight holds its data: accelerate brings offloaded weights in a
    wrapper of forward.
    """
    _, *parts = modules = list(model.modules())
    return (
        type(model).forward is GPT.forward
        and all(ours(part) for part in parts)
        and "forward" not in model.__dict__
        and not any(hooked_here(module) for module in modules)
        and not any(
            w.is_meta for module in modules for w in module._parameters.values() if w is not None
        )
        and len(model.blocks) > 0
    )


@torch.no_grad()
def whole_pass(
    model: GPT, tokens: Tokens, real: PositionMask | None = None, first: int = 0
) -> WholePass:
    """Run a model that can be entered, and keep what edited passes continue.

    Args:
        model: The model.
        tokens: The sequences.
        real: True at real tokens; None: all are.
        first: First position that is read behind the last layer.
    """
    tokens = checked_ids(tokens)
    run = pass_over(model, tokens.shape[1], real)
    residual = model.embed_input(tokens, run.positions, 0)
    layers = []
    for layer, block in enumerate(blocks_of(model)):
        last = layer == len(model.blocks) - 1
        half = halfway(block, residual, run, layer, first if last else 0)
        layers.append(half)
        residual = block.end(half.residual, run)
    return WholePass(
        model=model,
        real=real,
        first=first,
        positions=run.positions,
        layers=tuple(layers),
        rows=residual,
    )


@torch.no_grad()
def edited_rows(
    whole: WholePass, layer: int, edits: Edits, gates: GateTensors | None = None
) -> Float[Tensor, "run batch tail d_model"]:
    """Return the residual stream behind the last layer, of each run, from `first` on.

    Args:
        whole: The pass that the edited ones continue.
        layer: Where the edits are added, of the positions that are kept of this layer.
        edits: What each run adds to what this layer's attention writes.
        gates: Gates of the layers above, of the sequences of all runs in turn.
    """
    model, runs = whole.model, len(edits)
    real = None if whole.real is None else whole.real.repeat(runs, 1)
    n_pos = whole.positions.shape[-1]
    run = pass_over(model, n_pos, real, gates)
    residual = (whole.layers[layer].residual + edits).flatten(0, 1)
    blocks = blocks_of(model)
    residual = blocks[layer].end(residual, run)
    for above in range(layer + 1, len(blocks)):
        first = whole.first if above == len(blocks) - 1 else 0
        residual = halfway(blocks[above], residual, run, above, first).residual
        residual = blocks[above].end(residual, run)
    return residual.unflatten(0, (runs, -1))


def pass_over(
    model: GPT, n_pos: int, real: PositionMask | None, gates: GateTensors | None = None
) -> Pass:
    """Return what HookedGPT.forward tells every layer of a plain pass."""
    config, weight = model.config, model.embed.W_E
    positions = token_positions(real, 0, n_pos, weight.device)
    return Pass(
        positions=positions,
        first_pos=0,
        sight=Sight(causal=config.attention_dir == "causal", real=real),
        turns=turns_of(config, positions, weight.dtype),
        gates=None if gates is None else gates.like(weight),
        quiet=True,
    )


def blocks_of(model: GPT) -> list[Block]:
    """Return the layers of a model that can be entered."""
    return [cast(Block, block) for block in model.blocks]


def halfway(block: Block, residual: Resid, run: Pass, layer: int, first: int) -> Halfway:
    """Run a layer up to behind its attention, from a position on: keys alone before it."""
    read = residual[:, first:] if first else residual
    queries, keys, values = block.read(residual, run)
    queries = queries[:, first:] if first else queries
    z = block.attn.mix(queries, keys, values, run, layer)
    return Halfway(z=z, residual=block.middle(read, block.attn.write(z, run, layer), run))
