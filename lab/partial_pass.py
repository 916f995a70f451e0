"""A forward pass entered in the middle: behind the attention of a layer, with its output edited.

What a head writes is added to the residual stream, so a pass without it is the whole model's pass
up to there, less what the head wrote. One pass of the whole model is kept, and any number of edited
ones continue it: no layer below the edit, and not the attention of its own layer, runs again.
Everything is made of the methods of `lab.blocks`; what is done with the rows is not known here.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lab.attention import Sight, fused_attention, group_keys
from lab.blocks import Attention, Block, Pass
from lab.embeddings import TiedUnembed, Unembed
from lab.gates import GateTensors
from lab.inputs import checked_ids
from lab.model import HookedGPT
from lab.positions import Positions, token_positions, turned, turns_of
from lab.shapes import HeadVectors, PositionMask, Resid, Tokens
from lab.taps import hooked

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

    model: HookedGPT
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


def can_be_entered(model: HookedGPT) -> bool:
    """Tell whether parts of the model's pass can stand for it: nobody listens, no part is foreign.

    A hook may do anything anywhere, and so may a subclass's forward or a block of another class.
    """
    return (
        type(model).forward is HookedGPT.forward
        and all(type(block) is Block and type(block.attn) is Attention for block in model.blocks)
        and type(model.unembed) in (Unembed, TiedUnembed)
        and len(model.blocks) > 0
        and not hooked(model)
    )


@torch.no_grad()
def whole_pass(
    model: HookedGPT, tokens: Tokens, real: PositionMask | None = None, first: int = 0
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
    residual = model.embed_input(tokens, run)
    layers = []
    for layer, block in enumerate(model.blocks):
        last = layer == len(model.blocks) - 1
        half = halfway(cast(Block, block), residual, run, layer, first if last else 0)
        layers.append(half)
        residual = behind_mlp(cast(Block, block), half.residual, run)
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
    blocks = [cast(Block, block) for block in model.blocks]
    residual = behind_mlp(blocks[layer], residual, run)
    for above in range(layer + 1, len(blocks)):
        first = whole.first if above == len(blocks) - 1 else 0
        residual = halfway(blocks[above], residual, run, above, first).residual
        residual = behind_mlp(blocks[above], residual, run)
    return residual.unflatten(0, (runs, -1))


def pass_over(
    model: HookedGPT, n_pos: int, real: PositionMask | None, gates: GateTensors | None = None
) -> Pass:
    """Return what HookedGPT.forward tells every layer of a plain pass."""
    config, weight = model.config, model.W_E
    positions = token_positions(real, 0, n_pos, weight.device)
    return Pass(
        positions=positions,
        first_pos=0,
        sight=Sight(causal=config.attention_dir == "causal", real=real),
        gates=None if gates is None else gates.like(weight),
        observe=None,
        path="auto",
        kv_cache=None,
        turns=turns_of(config, positions, weight.dtype),
        last_read=None,
    )


def halfway(block: Block, residual: Resid, run: Pass, layer: int, first: int) -> Halfway:
    """Run a layer up to behind its attention, from a position on: of those before, keys only."""
    attn = block.attn
    normalised = block.ln1(residual)
    q = projected(normalised[:, first:], attn.W_Q, attn.b_Q)
    k = projected(normalised, attn.W_K, attn.b_K)
    v = projected(normalised, attn.W_V, attn.b_V)
    if run.turns is not None:
        cos, sin = run.turns
        adjacent = attn.rotary_adjacent_pairs
        q = turned(q, (cos[..., first:, :, :], sin[..., first:, :, :]), adjacent)
        k = turned(k, run.turns, adjacent)
    k, v = group_keys(k, attn.kv_order), group_keys(v, attn.kv_order)
    z = fused_attention(q, k, v, scale=attn.scale, sight=run.sight)
    mixed = z
    if run.gates is not None:
        mixed = run.gates.apply(layer, z, run.positions[..., first:], attn.head_ids)
    read = residual[:, first:]
    residual = read + F.linear(mixed.flatten(2), attn.W_O.flatten(0, 1).T, attn.b_O)
    if block.parallel and not block.attn_only:
        residual = residual + block.mlp_out(read, run)
    return Halfway(z=z, residual=residual)


def projected(
    normalised: Resid, weight: Float[Tensor, "head d_model d_head"], bias: Tensor
) -> HeadVectors:
    """Return one vector for each position and head, from one matrix product for all heads."""
    vectors = F.linear(normalised, weight.mT.flatten(0, 1), bias.flatten())
    return vectors.unflatten(-1, (-1, weight.shape[-1]))


def behind_mlp(block: Block, residual: Resid, run: Pass) -> Resid:
    """Return the stream behind a layer from where `Halfway.residual` stands."""
    if block.attn_only or block.parallel:
        return residual
    return residual + block.mlp_out(residual, run)
