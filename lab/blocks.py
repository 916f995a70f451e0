"""One layer of the model: attention and MLP, which read the residual stream and add to it.

The file reads top to bottom: attention, the block, and the calls of modules that may be foreign.
Each activation passes through a HookPoint, named as in TransformerLens. If a HookPoint has a hook,
its activation is computed step by step; otherwise PyTorch's fused kernel does several steps at
once. `lab.model` builds a model from layers.
"""

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint

from lab.attention import (
    Mixed,
    Queries,
    SharedKeys,
    attention_pattern,
    attention_scores,
    fused_attention,
    group_keys,
    mix_values,
    reading_order,
    share_keys,
)
from lab.attention_reads import AttentionReads
from lab.config import ModelConfig
from lab.embeddings import Embed, PosEmbed, TiedUnembed, Unembed
from lab.initial import draw_parameters
from lab.lens.view import HookedGPTConfig
from lab.mlps import MLP, GatedMLP
from lab.norms import LayerNorm, NoNorm, Norm, RMSNorm, make_norm
from lab.passes import Pass, pass_alone
from lab.positions import Turns, turned
from lab.projections import Laid, project, side_by_side
from lab.shapes import HeadVectors, Resid
from lab.taps import hooked

Rows = Float[Tensor, "batch query_pos d_model"]
"""The residual stream at the positions of the queries: all of them, or the last ones."""
PerHead = Float[Tensor, "batch query_pos head d_model"]
"""The same, one copy for each head."""
PerKeyHead = Float[Tensor, "batch pos kv_head d_model"]
"""The residual stream, one copy for each key and value head."""
KeyVectors = Float[Tensor, "batch pos kv_head d_head"]
"""One vector for each position and key head."""


class Attention(nn.Module):
    """Multi-head attention with hook points.

    Its steps are project, turn, attend and write; partial passes and decoding call them too.
    """

    def __init__(self, config: ModelConfig, cfg: HookedGPTConfig, layer: int) -> None:
        """Allocate the weights of the heads that config has in this layer."""
        super().__init__()
        self.config, self.cfg = config, cfg
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
        self.hook_attn_in = HookPoint()
        self.hook_q_input, self.hook_k_input = HookPoint(), HookPoint()
        self.hook_v_input = HookPoint()
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        if config.rotary_width:
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise the parameters again."""
        draw_parameters(self, self.config.initial_std, generator)

    def forward(
        self,
        q_in: Rows | PerHead,
        k_in: Resid | PerKeyHead,
        v_in: Resid | PerKeyHead,
        run: Pass | None = None,
        layer: int = 0,
    ) -> Rows:
        """Return the attention output, the sum over heads.

        Args:
            q_in: Input of the queries: the normalised stream, or one input for each head. It may
                hold the last positions only.
            k_in: The same for the keys, at every position.
            v_in: The same for the values.
            run: Settings of the forward pass; None: whole sequences, without padding.
            layer: Index of this layer in this pass: blocks can be copied and swapped.
        """
        run = pass_alone(self.config, k_in) if run is None else run
        return self.write(self.mix(q_in, k_in, v_in, run, layer), run, layer)

    def mix(
        self,
        q_in: Rows | PerHead,
        k_in: Resid | PerKeyHead,
        v_in: Resid | PerKeyHead,
        run: Pass,
        layer: int,
    ) -> Mixed:
        """Return z, the mixed values of every head, before gates and hook_z."""
        q, k, v, z = self.looks(q_in, k_in, v_in, run, layer)
        return self.attend(q, k, v, run, layer) if z is None else z

    def looks(
        self,
        q_in: Rows | PerHead,
        k_in: Resid | PerKeyHead,
        v_in: Resid | PerKeyHead,
        run: Pass,
        layer: int,
    ) -> tuple[Queries, SharedKeys, SharedKeys, Mixed | None]:
        """Return q, k and v as the scores use them, and z if the observer's reads computed it."""
        q, k, v = self.project(q_in, k_in, v_in, None if run.laid is None else run.laid[layer])
        if not run.quiet:
            q, k, v = run.tap(self.hook_q, q), run.tap(self.hook_k, k), run.tap(self.hook_v, v)
        if run.turns is not None:
            q, k = run.tap(self.hook_rot_q, self.turn(q, run.turns)), self.turn(k, run.turns)
            k = run.tap(self.hook_rot_k, k)
        if run.kv_cache is not None:
            k, v = run.kv_cache.extend(layer, k, v)
        k, v = group_keys(k, self.kv_order), group_keys(v, self.kv_order)
        if run.observe is None:
            return q, k, v, None
        matrix = run.path == "explicit" or run.hears(self.hook_attn_scores, self.hook_pattern)
        follows = run.last_read != layer and not matrix
        reads = AttentionReads(q, k, v, scale=self.scale, sight=run.sight, z_follows=follows)
        run.observe(layer, reads)
        return q, k, v, reads.z

    def project(
        self,
        q_in: Rows | PerHead,
        k_in: Resid | PerKeyHead,
        v_in: Resid | PerKeyHead,
        laid: Laid | None = None,
    ) -> tuple[Queries, KeyVectors, KeyVectors]:
        """Return q, k and v [batch, pos, head, d_head], from one product if they share an input."""
        same = q_in is k_in is v_in
        if same and laid is not None:
            q, k, v = laid(q_in)
            return q, k, v
        weights, biases = (self.W_Q, self.W_K, self.W_V), (self.b_Q, self.b_K, self.b_V)
        if same:
            q, k, v = project(q_in, weights, biases)
            return q, k, v
        each = zip((q_in, k_in, v_in), weights, biases, strict=True)
        q, k, v = (project(x, (weight,), (bias,))[0] for x, weight, bias in each)
        return q, k, v

    def laid(self) -> Laid:
        """Return the concatenated projections of q, k and v, without their gradients."""
        weights, biases = (self.W_Q, self.W_K, self.W_V), (self.b_Q, self.b_K, self.b_V)
        return side_by_side(weights, biases).detached()

    def turn(self, x: Queries, turns: Turns) -> Queries:
        """Return q or k rotated by position; x may hold the last positions only."""
        n_pos = x.shape[1]
        cos, sin = (each if each.shape[-3] == n_pos else each[..., -n_pos:, :, :] for each in turns)
        return turned(x, (cos, sin), self.config.rotary_adjacent_pairs)

    def attend(self, q: Queries, k: SharedKeys, v: SharedKeys, run: Pass, layer: int) -> Mixed:
        """Return z, through the explicit path if a hook needs scores or pattern."""
        seen = run.hears(self.hook_attn_scores, self.hook_pattern)
        if run.path == "fused" and seen:
            raise ValueError(
                "attention='fused' never builds the scores and the pattern, "
                f"but hooks listen on them in layer {layer}; use attention='auto'"
            )
        if run.path != "explicit" and not seen:
            return fused_attention(q, k, v, scale=self.scale, sight=run.sight)
        k, v = share_keys(k, q.shape[2]), share_keys(v, q.shape[2])
        scores = attention_scores(q, k, scale=self.scale, sight=run.sight)
        pattern = attention_pattern(run.tap(self.hook_attn_scores, scores))
        return mix_values(run.tap(self.hook_pattern, pattern), v)

    def write(self, z: HeadVectors, run: Pass, layer: int) -> Resid:
        """Return the attention output z W_O + b_O, after gates and hook_z."""
        if run.gates is not None:
            positions = run.positions[..., -z.shape[1] :]
            z = run.gates.apply(layer, z, positions, self.head_ids)
        z = run.tap(self.hook_z, z)
        if self.cfg.use_attn_result or run.hears(self.hook_result):
            return run.tap(self.hook_result, self.head_results(z)).sum(dim=2) + self.b_O
        return F.linear(z.flatten(2), self.W_O.flatten(0, 1).T, self.b_O)

    def head_results(self, z: HeadVectors) -> PerHead:
        """Return the output of each head, z W_O."""
        pattern = "batch pos head d_head, head d_head d_model -> batch pos head d_model"
        return einsum(z, self.W_O, pattern)


class Block(nn.Module):
    """One layer: attention and MLP read the residual stream and add their outputs to it.

    Its steps are read, the steps of Attention, middle and end; partial passes call them too.
    """

    hook_out_is_single_residual_stream = True
    """TransformerLens's logit lens reads this attribute."""

    def __init__(self, config: ModelConfig, cfg: HookedGPTConfig, layer: int) -> None:
        """Build attention and, except in an attention-only model, the MLP."""
        super().__init__()
        self.config, self.cfg = config, cfg
        self.attn_only, self.parallel = config.attn_only, config.parallel_attn_mlp
        self.ln1 = make_norm(config)
        self.attn = Attention(config, cfg, layer)
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()
        self.hook_resid_post = HookPoint()
        if self.attn_only:
            return
        self.ln2 = make_norm(config)
        self.mlp = GatedMLP(config) if config.gated_mlp else MLP(config)
        self.hook_mlp_in, self.hook_mlp_out = HookPoint(), HookPoint()
        if not self.parallel:
            self.hook_resid_mid = HookPoint()

    def forward(self, residual: Resid, run: Pass | None = None, layer: int = 0) -> Resid:
        """Return the residual stream after this layer; run and layer are as in Attention."""
        run = pass_alone(self.config, residual) if run is None else run
        residual = run.tap(self.hook_resid_pre, residual)
        inputs = self.read(residual, run)
        if run.last_read == layer and ours(self.attn) and not hooked(self):
            self.attn.looks(*inputs, run, layer)
            return residual
        attn_out = run.tap(self.hook_attn_out, hand_on(self.attn, inputs, run, layer))
        return self.end(self.middle(residual, attn_out, run), run)

    def read(
        self, residual: Resid, run: Pass
    ) -> tuple[Resid | PerHead, Resid | PerKeyHead, Resid | PerKeyHead]:
        """Return the inputs of q, k and v."""
        attn, cfg = self.attn, self.cfg
        normalised = in_steps(self.ln1, residual, run)
        if run.quiet or not isinstance(attn, Attention):
            return normalised, normalised, normalised
        hooks = (attn.hook_attn_in, attn.hook_q_input, attn.hook_k_input, attn.hook_v_input)
        if not (cfg.use_attn_in or cfg.use_split_qkv_input or run.hears(*hooks)):
            return normalised, normalised, normalised
        return self.forks(residual, normalised, run)

    def forks(
        self, residual: Resid, normalised: Resid, run: Pass
    ) -> tuple[PerHead, PerKeyHead, PerKeyHead]:
        """Return the inputs of q, k and v of each head, after the hooks on them.

        The hooks get copies of the stream before ln1, one for each head. Normalising the copies
        does not call ln1's own hooks, which already ran on the stream; their change is added.
        """
        attn = self.attn
        queries, keys = len(attn.head_ids), len(attn.kv_ids)
        if self.cfg.use_attn_in or run.hears(attn.hook_attn_in):
            if queries != keys:
                raise ValueError(
                    "hook_attn_in needs a key head for each query head, got grouped-query "
                    f"attention with {keys} for {queries}; use hook_q_input, hook_k_input and "
                    "hook_v_input"
                )
            shared = run.tap(attn.hook_attn_in, fork(residual, queries))
            copies = (shared, shared.clone(), shared.clone())
        else:
            copies = (fork(residual, queries), fork(residual, keys), fork(residual, keys))
        if self.cfg.use_split_qkv_input or run.hears(
            attn.hook_q_input, attn.hook_k_input, attn.hook_v_input
        ):
            hooks = (attn.hook_q_input, attn.hook_k_input, attn.hook_v_input)
            copies = tuple(run.tap(hook, copy) for hook, copy in zip(hooks, copies, strict=True))
        norm = self.ln1.fused if ours(self.ln1) else self.ln1
        edited = rearrange(normalised - norm(residual), "b pos d -> b pos 1 d")
        q_in, k_in, v_in = (norm(copy) + edited for copy in copies)
        return q_in, k_in, v_in

    def middle(self, residual: Resid, attn_out: Resid, run: Pass) -> Resid:
        """Return the stream after attention, or after the layer if attention and MLP are parallel.

        Args:
            residual: The stream before the layer, at the positions of attn_out.
            attn_out: The output of attention.
            run: Settings of the forward pass.
        """
        if self.attn_only:
            return residual + attn_out
        if self.parallel:
            return residual + attn_out + self.mlp_out(residual, run)
        return run.tap(self.hook_resid_mid, residual + attn_out)

    def end(self, middle: Resid, run: Pass) -> Resid:
        """Return the stream after the layer, from the result of `middle`."""
        if not (self.attn_only or self.parallel):
            middle = middle + self.mlp_out(middle, run)
        return run.tap(self.hook_resid_post, middle)

    def mlp_out(self, residual: Resid, run: Pass) -> Resid:
        """Return the MLP output."""
        if self.cfg.use_hook_mlp_in or run.hears(self.hook_mlp_in):
            residual = run.tap(self.hook_mlp_in, residual.clone())
        return run.tap(
            self.hook_mlp_out, in_steps(self.mlp, in_steps(self.ln2, residual, run), run)
        )


OURS = frozenset(
    kind.forward
    for kind in (
        *(Attention, Block, MLP, GatedMLP, LayerNorm, RMSNorm, NoNorm),
        *(Embed, PosEmbed, Unembed, TiedUnembed, HookPoint, nn.ModuleList),
    )
)
"""The forward functions of this package; only these get the settings of a pass."""


def ours(part: nn.Module) -> bool:
    """Return whether a module runs this package's forward: neither replaced nor wrapped."""
    return type(part).forward in OURS and "forward" not in part.__dict__


def hears(part: nn.Module) -> bool:
    """Return whether a module accepts the settings of a pass beside tensors.

    Our own modules do, also in accelerate's wrapper for offloaded weights, which passes all
    arguments on. Other wrappers may not.
    """
    return ours(part) or (type(part).forward in OURS and "_hf_hook" in part.__dict__)


def hand_on(part: nn.Module, inputs: tuple[Tensor, ...], run: Pass, layer: int) -> Resid:
    """Call a layer or its attention with the settings of the pass; a foreign one gets only tensors.

    Raises:
        ValueError: The module is foreign and would ignore a setting of the pass.
    """
    if run.quiet:
        return part.forward(*inputs, run, layer)
    if hears(part):
        return part(*inputs, run, layer)
    run.reject_foreign(part, layer)
    return part(*inputs)


def in_steps(part: nn.Module, x: Resid, run: Pass) -> Resid:
    """Call a norm or an MLP on x; in an explicit pass, our own modules run step by step."""
    if run.quiet:  # skip torch.nn.Module's calls of hooks
        return part.fused(x) if isinstance(part, Norm) else part.forward(x)
    return part(x, True) if run.path == "explicit" and hears(part) else part(x)


def fork(residual: Resid, heads: int) -> PerHead:
    """Return a copy of the residual stream for each head."""
    return repeat(residual, "batch pos d_model -> batch pos head d_model", head=heads).clone()
