"""One layer of the model: attention and MLP, which read the residual stream and add to it.

The file reads top to bottom: what a forward pass tells every layer, attend, block. Each activation
passes through a HookPoint, named as in TransformerLens. A HookPoint with listeners gets the
activation computed step by step; without listeners the fused kernel of PyTorch does several steps
at once. How layers become a model is in `lab.model`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint

from lab.attention import (
    SharedKeys,
    Sight,
    attention_pattern,
    attention_scores,
    fused_attention,
    group_keys,
    mix_values,
    reading_order,
    share_keys,
)
from lab.config import ModelConfig
from lab.gates import GateTensors
from lab.initial import draw_parameters
from lab.kv_cache import KeyValueCache
from lab.lens.view import HookedGPTConfig
from lab.mlps import MLP, GatedMLP
from lab.norms import make_norm
from lab.positions import Positions, Turns, turned
from lab.reads import AttentionReads, Observer
from lab.shapes import HeadVectors, Resid
from lab.taps import hooked, listened, tap

AttentionPath = Literal["auto", "fused", "explicit"]
PerHead = Float[Tensor, "batch pos head d_model"]
"""The residual stream, forked: one copy for each head."""
PerKeyHead = Float[Tensor, "batch pos kv_head d_model"]
"""The same for each key and value head."""
KeyVectors = Float[Tensor, "batch pos kv_head d_head"]
"""One vector for each position and key head."""
FEW_POSITIONS = 16
"""Up to so many, as in decoding, laying weights side by side costs more than it saves."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """What one forward pass tells every layer."""

    positions: Positions
    first_pos: int
    sight: Sight
    gates: GateTensors | None
    observe: Observer | None
    path: AttentionPath
    kv_cache: KeyValueCache | None
    turns: Turns | None
    """How far rotary positions turn q and k."""
    last_read: int | None
    """The layer after whose reads nothing is asked for; None: all of it is."""


class Attention(nn.Module):
    """Every head reads the residual stream, mixes values over positions, and writes back."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        """Make room for the weights of every head that config has in this layer."""
        super().__init__()
        self.initial_std = config.initial_std
        self.head_ids, self.kv_ids = config.heads_of(layer), config.kv_heads_of(layer)
        reads = tuple(self.kv_ids.index(config.kv_head(head)) for head in self.head_ids)
        self.kv_order = reading_order(reads, len(self.kv_ids))
        heads, kv_heads = len(self.head_ids), len(self.kv_ids)
        width, d_head = config.d_model, config.head_width
        self.scale = d_head**-0.5
        self.W_Q = nn.Parameter(torch.empty(heads, width, d_head))
        self.W_K = nn.Parameter(torch.empty(kv_heads, width, d_head))
        self.W_V = nn.Parameter(torch.empty(kv_heads, width, d_head))
        self.W_O = nn.Parameter(torch.empty(heads, d_head, width))
        self.b_Q = nn.Parameter(torch.zeros(heads, d_head))
        self.b_K = nn.Parameter(torch.zeros(kv_heads, d_head))
        self.b_V = nn.Parameter(torch.zeros(kv_heads, d_head))
        self.b_O = nn.Parameter(torch.zeros(width))
        self.rotary_adjacent_pairs = config.rotary_adjacent_pairs
        self.hook_attn_in = HookPoint()
        self.hook_q_input, self.hook_k_input = HookPoint(), HookPoint()
        self.hook_v_input = HookPoint()
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        if config.rotary_width:
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the parameters anew."""
        draw_parameters(self, self.initial_std, generator)

    def forward(
        self,
        q_in: Resid | PerHead,
        k_in: Resid | PerKeyHead,
        v_in: Resid | PerKeyHead,
        run: Pass,
        layer: int,
        use_result: bool,
    ) -> Resid:
        """Return what all heads together add to the residual stream.

        Args:
            q_in: What the queries are made of: the normalised stream, or one of its own a head.
            k_in: The same for the keys.
            v_in: The same for the values.
            run: What this forward pass tells every layer.
            layer: Where this layer stands now: blocks can be copied and swapped.
            use_result: Compute what each head adds on its own, for hook_result.
        """
        q, k, v, z = self.looks(q_in, k_in, v_in, run, layer)
        if z is None:
            z = self.attend(q, k, v, run, layer)
        if run.gates is not None:
            z = run.gates.apply(layer, z, run.positions, self.head_ids)
        z = tap(self.hook_z, z)
        if use_result:
            return tap(self.hook_result, self.head_results(z)).sum(dim=2) + self.b_O
        return F.linear(z.flatten(2), self.W_O.flatten(0, 1).T, self.b_O)

    def looks(
        self,
        q_in: Resid | PerHead,
        k_in: Resid | PerKeyHead,
        v_in: Resid | PerKeyHead,
        run: Pass,
        layer: int,
    ) -> tuple[HeadVectors, SharedKeys, SharedKeys, HeadVectors | None]:
        """Return q, k and v as the scores use them, and z where the observer's reads brought it."""
        q, k, v = self.projections(q_in, k_in, v_in, run.kv_cache, layer)
        q, k, v = tap(self.hook_q, q), tap(self.hook_k, k), tap(self.hook_v, v)
        if run.turns is not None:
            q = tap(self.hook_rot_q, turned(q, run.turns, self.rotary_adjacent_pairs))
            k = tap(self.hook_rot_k, turned(k, run.turns, self.rotary_adjacent_pairs))
        if run.kv_cache is not None:
            k, v = run.kv_cache.extend(layer, k, v)
        k, v = group_keys(k, self.kv_order), group_keys(v, self.kv_order)
        if run.observe is None:
            return q, k, v, None
        matrix = run.path == "explicit" or listened(self.hook_attn_scores, self.hook_pattern)
        follows = run.last_read != layer and not matrix
        reads = AttentionReads(q, k, v, scale=self.scale, sight=run.sight, z_follows=follows)
        run.observe(layer, reads)
        return q, k, v, reads.z

    def projections(
        self,
        q_in: Resid | PerHead,
        k_in: Resid | PerKeyHead,
        v_in: Resid | PerKeyHead,
        kv_cache: KeyValueCache | None,
        layer: int,
    ) -> tuple[HeadVectors, KeyVectors, KeyVectors]:
        """Return q, k and v: from one matrix product for all heads, unless each reads its own."""
        weights, biases = (self.W_Q, self.W_K, self.W_V), (self.b_Q, self.b_K, self.b_V)
        kept = None if kv_cache is None else kv_cache.weights
        few = kept is None and q_in.shape[0] * q_in.shape[1] <= FEW_POSITIONS
        if q_in.ndim == 4 or few:
            inputs, of_one = (q_in, k_in, v_in), project if q_in.ndim == 4 else project_few
            q, k, v = (of_one(*each) for each in zip(inputs, weights, biases, strict=True))
            return q, k, v
        if kept is not None and layer in kept:
            flat, bias = kept[layer]
        else:
            flat = torch.cat([weight.mT for weight in weights]).flatten(0, 1)
            bias = torch.cat(biases).flatten()
            if kept is not None:
                kept[layer] = flat, bias
        vectors = F.linear(q_in, flat, bias).unflatten(-1, (-1, self.W_Q.shape[-1]))
        heads, kv_heads = len(self.head_ids), len(self.kv_ids)
        # What hooks may write into: autograd forbids it for what split() returns, and the gradients
        # of slices are three tensors of the whole size where this gives one.
        q, k, v = vectors.unsafe_split_with_sizes([heads, kv_heads, kv_heads], dim=2)
        return q, k, v

    def head_results(self, z: HeadVectors) -> PerHead:
        """Return what each head adds to the residual stream."""
        pattern = "batch pos head d_head, head d_head d_model -> batch pos head d_model"
        return einsum(z, self.W_O, pattern)

    def attend(
        self, q: HeadVectors, k: SharedKeys, v: SharedKeys, run: Pass, layer: int
    ) -> HeadVectors:
        """Mix the values, through the matrix if somebody wants to see it."""
        seen = listened(self.hook_attn_scores, self.hook_pattern)
        if run.path == "fused" and seen:
            raise ValueError(
                "attention='fused' never builds the scores and the pattern, "
                f"but hooks listen on them in layer {layer}; use attention='auto'"
            )
        if run.path != "explicit" and not seen:
            return fused_attention(q, k, v, scale=self.scale, sight=run.sight)
        k, v = share_keys(k, q.shape[2]), share_keys(v, q.shape[2])
        scores = attention_scores(q, k, scale=self.scale, sight=run.sight)
        pattern = attention_pattern(tap(self.hook_attn_scores, scores))
        return mix_values(tap(self.hook_pattern, pattern), v)


class Block(nn.Module):
    """One layer: the residual stream passes by; attention and MLP each read it and add to it."""

    hook_out_is_single_residual_stream = True
    """What TransformerLens's logit lens asks of a block."""

    def __init__(self, config: ModelConfig, cfg: HookedGPTConfig, layer: int) -> None:
        """Build the two halves of the layer, or only the first in an attention-only model."""
        super().__init__()
        self.cfg = cfg
        self.attn_only, self.parallel = config.attn_only, config.parallel_attn_mlp
        self.ln1 = make_norm(config)
        self.attn = Attention(config, layer)
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()
        self.hook_resid_post = HookPoint()
        if self.attn_only:
            return
        self.ln2 = make_norm(config)
        self.mlp = GatedMLP(config) if config.gated_mlp else MLP(config)
        self.hook_mlp_in, self.hook_mlp_out = HookPoint(), HookPoint()
        if not self.parallel:
            self.hook_resid_mid = HookPoint()

    def forward(self, residual: Resid, run: Pass, layer: int) -> Resid:
        """Return the residual stream after this layer."""
        residual = tap(self.hook_resid_pre, residual)
        if run.last_read == layer and not hooked(self):
            self.attn.looks(*self.attn_inputs(residual, run), run, layer)
            return residual
        attn_out = tap(self.hook_attn_out, self.attn_out(residual, run, layer))
        if self.attn_only:
            return tap(self.hook_resid_post, residual + attn_out)
        if self.parallel:
            return tap(self.hook_resid_post, residual + attn_out + self.mlp_out(residual, run))
        residual = tap(self.hook_resid_mid, residual + attn_out)
        return tap(self.hook_resid_post, residual + self.mlp_out(residual, run))

    def attn_out(self, residual: Resid, run: Pass, layer: int) -> Resid:
        """Return what the heads add."""
        use_result = self.cfg.use_attn_result or listened(self.attn.hook_result)
        return self.attn(*self.attn_inputs(residual, run), run, layer, use_result)

    def attn_inputs(
        self, residual: Resid, run: Pass
    ) -> tuple[Resid | PerHead, Resid | PerKeyHead, Resid | PerKeyHead]:
        """Return what q, k and v are made of."""
        attn, cfg = self.attn, self.cfg
        hooks = (attn.hook_attn_in, attn.hook_q_input, attn.hook_k_input, attn.hook_v_input)
        normalised = self.ln1(residual, run.path == "explicit")
        if not (cfg.use_attn_in or cfg.use_split_qkv_input or listened(*hooks)):
            return normalised, normalised, normalised
        return self.forks(residual, normalised)

    def forks(self, residual: Resid, normalised: Resid) -> tuple[PerHead, PerKeyHead, PerKeyHead]:
        """Return what q, k and v of each head are made of, after the hooks on their inputs.

        The hooks get copies of the stream before ln1, one for each head. Copies are normalised past
        ln1's own hooks, which have fired once on the stream; what those changed is added.
        """
        attn = self.attn
        queries, keys = len(attn.head_ids), len(attn.kv_ids)
        if self.cfg.use_attn_in or listened(attn.hook_attn_in):
            if queries != keys:
                raise ValueError(
                    "hook_attn_in needs a key head for each query head, got grouped-query "
                    f"attention with {keys} for {queries}; use hook_q_input and its fellows"
                )
            shared = tap(attn.hook_attn_in, fork(residual, queries))
            copies = (shared, shared.clone(), shared.clone())
        else:
            copies = (fork(residual, queries), fork(residual, keys), fork(residual, keys))
        if self.cfg.use_split_qkv_input or listened(
            attn.hook_q_input, attn.hook_k_input, attn.hook_v_input
        ):
            hooks = (attn.hook_q_input, attn.hook_k_input, attn.hook_v_input)
            copies = tuple(tap(hook, copy) for hook, copy in zip(hooks, copies, strict=True))
        edited = rearrange(normalised - self.ln1.fused(residual), "b pos d -> b pos 1 d")
        q_in, k_in, v_in = (self.ln1.fused(copy) + edited for copy in copies)
        return q_in, k_in, v_in

    def mlp_out(self, residual: Resid, run: Pass) -> Resid:
        """Return what the MLP adds."""
        if self.cfg.use_hook_mlp_in or listened(self.hook_mlp_in):
            residual = tap(self.hook_mlp_in, residual.clone())
        stepwise = run.path == "explicit"
        return tap(self.hook_mlp_out, self.mlp(self.ln2(residual, stepwise), stepwise))


def fork(residual: Resid, heads: int) -> PerHead:
    """Return a copy of the residual stream for each head."""
    return repeat(residual, "batch pos d_model -> batch pos head d_model", head=heads).clone()


def project(
    inputs: PerHead,
    weight: Float[Tensor, "head d_model d_head"],
    bias: Float[Tensor, "head d_head"],
) -> HeadVectors:
    """Return one vector for each position and head, each from an input of its own."""
    pattern = "batch pos head d_model, head d_model d_head -> batch pos head d_head"
    return einsum(inputs, weight, pattern) + bias


def project_few(
    normalised: Resid,
    weight: Float[Tensor, "head d_model d_head"],
    bias: Float[Tensor, "head d_head"],
) -> HeadVectors:
    """Return what `project` does from a product for each head, with the weights where they are."""
    positions = normalised.flatten(0, 1).expand(len(weight), -1, -1)
    vectors = torch.baddbmm(bias.unsqueeze(1), positions, weight)
    return vectors.transpose(0, 1).unflatten(0, normalised.shape[:2])
