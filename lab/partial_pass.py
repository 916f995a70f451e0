"""A forward pass that resumes after a layer's attention, with the attention output edited.

Heads add their outputs to the residual stream, so a pass without a head equals the whole pass up to
its layer, minus its output. One whole pass is kept, and any number of edited passes resume from it:
the layers below the edit, and the attention of its own layer, do not run again. Every step is a
method of `lab.blocks`.
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
"""What each run adds to the attention output of a layer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Halfway:
    """State of the whole pass after the attention of one layer."""

    z: HeadVectors
    """z of its heads."""
    residual: Resid
    """The stream to which an edit is added: before the MLP, or after the whole layer if the MLP
    does not read the attention output."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WholePass:
    """The state of every layer after a forward pass, kept for edited passes."""

    model: GPT
    real: PositionMask | None
    first: int
    """First position that is read: the last layer computes only from here on."""
    positions: Positions
    layers: tuple[Halfway, ...]
    """Every layer, the last one from `first` on."""
    rows: Float[Tensor, "batch tail d_model"]
    """The residual stream after the last layer, from `first` on."""

    def positions_in(self, layer: int) -> Positions:
        """Return the positions of the vectors that are kept for a layer."""
        return (
            self.positions[..., self.first :] if layer == len(self.layers) - 1 else self.positions
        )


def can_be_entered(model: GPT) -> bool:
    """Return whether the fast path gives the same result as forward.

    It does if there are no hooks, the model and all its modules run this package's forward, neither
    replaced nor wrapped, and all weights are in memory: accelerate loads offloaded weights in a
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
    """Run a model that can be entered, and keep the state from which edited passes resume.

    Args:
        model: The model.
        tokens: The sequences.
        real: True at unpadded tokens; None: no padding.
        first: First position that is read after the last layer.
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
    """Return the residual stream of each run after the last layer, from `first` on.

    Args:
        whole: The pass from which the edited ones resume.
        layer: Layer of the edits, which cover the positions that are kept for it.
        edits: What each run adds to this layer's attention output.
        gates: Gates of the layers above, for the sequences of all runs in turn.
    """
    model, runs = whole.model, len(edits)
    real = None if whole.real is None else whole.real.repeat(runs, 1)
    n_pos = whole.positions.shape[-1]
    run = pass_over(model, n_pos, real, gates)
    residual = (whole.layers[layer].residual + edits).flatten(0, 1)  # [run * batch, pos, d_model]
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
    """Return the settings that HookedGPT.forward uses for a plain pass."""
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
    """Return the layers of a model, typed as blocks."""
    return [cast(Block, block) for block in model.blocks]


def halfway(block: Block, residual: Resid, run: Pass, layer: int, first: int) -> Halfway:
    """Run a layer through its attention; positions before `first` give keys and values only."""
    read = residual[:, first:] if first else residual
    queries, keys, values = block.read(residual, run)
    queries = queries[:, first:] if first else queries
    z = block.attn.mix(queries, keys, values, run, layer)
    return Halfway(z=z, residual=block.middle(read, block.attn.write(z, run, layer), run))
