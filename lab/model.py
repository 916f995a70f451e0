"""HookedGPT: a decoder-only Transformer whose every activation can be read and edited.

The file reads top to bottom like the model: attend, block, and the forward pass that runs them
between the two ends of `lab.embeddings`. Each activation passes through a HookPoint, named as in
TransformerLens. A HookPoint with listeners gets the activation computed step by step; without
listeners the fused kernel of PyTorch does several steps at once. What surrounds the model for
TransformerLens's tools is in `lab.lens.surface`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
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
from lab.config import ModelConfig, SampleConfig, require_choice
from lab.embeddings import Embed, PosEmbed, TiedUnembed, Unembed, check_tied_weight
from lab.gates import GateTensors, HeadGates, check_gates
from lab.initial import draw_parameters
from lab.inputs import check_layer, checked_ids, checked_mask, checked_residual
from lab.kv_cache import KeyValueCache
from lab.lens.surface import TransformerLensSurface
from lab.lens.view import HookedGPTConfig
from lab.losses import check_loss, next_token_loss
from lab.mlps import MLP, GatedMLP
from lab.norms import make_norm
from lab.positions import Positions, Turns, rotary_turns, token_positions, turned
from lab.reads import AttentionReads
from lab.shapes import GivenMask, HeadVectors, Resid, Tokens
from lab.taps import hooked, listened, tap

AttentionPath = Literal["auto", "fused", "explicit"]
Observer = Callable[[int, AttentionReads], None]
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


class HookedGPT(TransformerLensSurface):
    """A GPT with TransformerLens's names: read it, edit it, gate its heads.

    Useful pattern: `logits, cache = model.run_with_cache(tokens, names_filter="hook_embed")`.

    >>> model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=4))
    >>> model(torch.tensor([[0, 1, 2]])).shape
    torch.Size([1, 3, 5])
    """

    def __init__(self, config: ModelConfig) -> None:
        """Build the model on the CPU with initial weights drawn from config.seed."""
        super().__init__(config)
        self.embed = Embed(config)
        self.hook_embed = HookPoint()
        self.adds_positions = config.positional_embedding_type in ("standard", "sinusoidal")
        if self.adds_positions:
            self.pos_embed = PosEmbed(config)
            self.hook_pos_embed = HookPoint()
        self.blocks = nn.ModuleList(
            Block(config, self.cfg, layer) for layer in range(config.n_layers)
        )
        self.ln_final = make_norm(config)
        if config.tie_word_embeddings:
            self.unembed = TiedUnembed(config, self.embed)
            self.register_load_state_dict_pre_hook(check_tied_weight)
        else:
            self.unembed = Unembed(config)
        self.init_weights()
        self.setup()

    def __setattr__(self, name: str, value: Any) -> None:
        """Put a part in its place; a tied unembedding follows the embedding."""
        super().__setattr__(name, value)
        unembed = self.__dict__.get("_modules", {}).get("unembed")
        if name == "embed" and isinstance(unembed, TiedUnembed):
            unembed.tie(value)

    def init_weights(self) -> None:
        """Draw every parameter from config.seed; the global generator is left alone."""
        self.reset_parameters(torch.Generator().manual_seed(self.config.seed))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every parameter anew, from PyTorch's global generator unless another is given."""
        for module in list(self.modules())[1:]:
            if any(True for _ in module.parameters(recurse=False)):
                module.reset_parameters(generator)  # pyright: ignore[reportCallIssue]

    def forward(
        self,
        input: Tokens | Resid | Int[Tensor, " pos"] | str | list[str],
        return_type: Literal["logits", "loss", "both"] | None = "logits",
        loss_per_token: bool = False,
        *,
        tokens: Tokens | None = None,
        gates: HeadGates | GateTensors | None = None,
        observe: Observer | None = None,
        attention: AttentionPath = "auto",
        attention_mask: GivenMask | None = None,
        kv_cache: KeyValueCache | None = None,
        last_only: bool = False,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
    ) -> Any:
        """Run the model, or some of its layers.

        Args:
            input: Token ids (or a text, where there is a tokenizer), or with start_at_layer the
                residual stream before that layer.
            return_type: "logits" [batch, pos, d_vocab]; "loss", the mean of -ln p(next token), NaN
                where attention_mask leaves none to predict;
                "both", the pair; None, nothing (for observers: then the last layer stops after its
                reads, unless a hook stands on it).
            loss_per_token: Return the loss of each position but the last: [batch, pos - 1].
            tokens: The ids that a loss needs when input is a residual stream.
            gates: Which heads are scaled and what fills the gap, just before hook_z.
            observe: Called once a layer, in order, with (layer, AttentionReads).
            attention: "auto" builds scores and pattern only in layers where a hook listens on them;
                "explicit" always, norms in steps too; "fused" never, and refuses such hooks.
            attention_mask: True (or 1) at real tokens, False at padding, which may stand on the
                left, on the right or both: [batch, pos] of this call's tokens, or [1, pos] for all
                sequences. Padding is seen by nobody and shifts no position.
            kv_cache: Holds the positions computed before; input then holds the new ones only.
            last_only: Normalise and unembed the last position only: logits [batch, 1, d_vocab].
            start_at_layer: First layer to run; negative counts from the end.
            stop_at_layer: Stop before this layer and return the residual stream there.

        Returns:
            What return_type says, or with stop_at_layer the residual stream.

        Raises:
            ValueError: Too many positions, token ids out of range, arguments of another shape or
                type than the model reads, or that exclude each other, or a loss of nothing.
        """
        require_choice("attention", attention, ("auto", "fused", "explicit"))
        if not torch.compiler.is_compiling():
            self.check_live_hooks()
        if return_type not in ("logits", "loss", "both", None):
            raise ValueError(f"return_type must be logits, loss, both or None, got {return_type!r}")
        if kv_cache is not None and not (start_at_layer is stop_at_layer is None):
            raise ValueError(
                "kv_cache must be used with all layers, got start_at_layer or stop_at_layer"
            )
        config = self.config
        check_layer("start_at_layer", start_at_layer, config.n_layers)
        check_layer("stop_at_layer", stop_at_layer, config.n_layers)
        if start_at_layer is not None:
            given = checked_residual(input, config)
        elif not isinstance(input, Tensor) or input.ndim == 1:
            given = checked_ids(self.to_tokens(input))
        else:
            given = checked_ids(input)
        batch, n_pos = given.shape[:2]
        if isinstance(gates, HeadGates):
            gates = gates.tensors(self)
        if gates is not None:
            check_gates(gates, config, batch)
            gates = gates.like(self.W_E)
        real = None
        if attention_mask is not None:
            real = checked_mask(attention_mask, batch, n_pos, given.device)
        first_pos = 0
        if kv_cache is not None:
            kv_cache.check(config, batch)
            first_pos = kv_cache.length
            real = kv_cache.extend_mask(real, batch, n_pos)
        positions = token_positions(real, first_pos, n_pos, given.device)
        turns = None
        if config.rotary_width:
            base, width = config.rotary_base, config.rotary_width
            turns = rotary_turns(positions, base, width, self.W_E.dtype)
        layers = range(self.cfg.n_layers)[start_at_layer:stop_at_layer]
        only_reads = observe is not None and return_type is stop_at_layer is None
        run = Pass(
            positions=positions,
            first_pos=first_pos,
            sight=Sight(causal=config.attention_dir == "causal", real=real),
            gates=gates,
            observe=observe,
            path=attention,
            kv_cache=kv_cache,
            turns=turns,
            last_read=layers[-1] if only_reads and layers else None,
        )
        residual = self.embed_input(given, run) if start_at_layer is None else given
        for layer in layers:
            residual = self.blocks[layer](residual, run, layer)
        if kv_cache is not None:
            kv_cache.length += n_pos
        if stop_at_layer is not None:
            return residual
        if return_type is None:
            return None
        if last_only:
            require_choice("return_type with last_only", return_type, ("logits",))
            residual = residual[:, -1:]
        logits = self.unembed(self.ln_final(residual, attention == "explicit"))
        if return_type == "logits":
            return logits
        if tokens is None and start_at_layer is not None:
            raise ValueError("a loss with start_at_layer needs tokens=, got none")
        targets = given if tokens is None else checked_ids(tokens, "tokens")
        check_loss(logits, targets, config.d_vocab, loss_per_token)
        real = None if real is None else real[:, first_pos:]
        loss = next_token_loss(logits, targets, real, loss_per_token)
        return loss if return_type == "loss" else (logits, loss)

    def embed_input(self, tokens: Tokens, run: Pass) -> Resid:
        """Return the residual stream before the first layer."""
        n_pos = run.first_pos + tokens.shape[1]
        if not (tokens.shape[1] and n_pos <= self.cfg.n_ctx):
            past = f" ({run.first_pos} of them in kv_cache)" if run.first_pos else ""
            raise ValueError(
                f"a sequence must have 1 to n_ctx = {self.cfg.n_ctx} tokens, got {n_pos}{past}"
            )
        residual = tap(self.hook_embed, self.embed(tokens))
        if self.adds_positions:
            residual = residual + tap(
                self.hook_pos_embed, self.pos_embed(tokens, run.positions, run.first_pos)
            )
        return residual

    def generate(
        self,
        tokens: Tokens,
        max_new_tokens: int = 20,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        gates: HeadGates | GateTensors | None = None,
        *,
        stop_ids: Sequence[int] = (),
        attention_mask: GivenMask | None = None,
        observe: Observer | None = None,
    ) -> Int[Tensor, "batch new_pos"]:
        """Return the tokens with max_new_tokens drawn after them; see lab.generation.steps."""
        from lab.generation import generate

        sample = SampleConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return generate(
            self,
            tokens,
            sample,
            max_new_tokens,
            gates=gates,
            stop_ids=stop_ids,
            attention_mask=attention_mask,
            observe=observe,
        )

    def fold_ln(self) -> "HookedGPT":
        """Return a model of the same logits whose norms have no weights; see lab.lens.folding."""
        from lab.lens.folding import fold_norms

        return fold_norms(self)

    def save(self, path: str | Path) -> None:
        """Write config and weights to a new folder; see lab.checkpoint.save_model."""
        from lab.checkpoint import save_model

        save_model(self, path)

    @classmethod
    def from_tl_checkpoint(
        cls, source: str | Path | Mapping[str, Any], cfg: Any, device: str = "cpu"
    ) -> "HookedGPT":
        """Load an old HookedTransformer; see lab.lens.old_checkpoint.load_tl_checkpoint."""
        from lab.lens.old_checkpoint import load_tl_checkpoint

        return load_tl_checkpoint(source, cfg, device=device)

    def to_boot_native(self) -> Any:
        """Return it as a TransformerBridge.boot_native; see lab.lens.boot_native.to_boot_native."""
        from lab.lens.boot_native import to_boot_native

        return to_boot_native(self)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu", step: int | None = None) -> "HookedGPT":
        """Read a model from a run folder or a checkpoint folder; see lab.checkpoint.load_model."""
        from lab.checkpoint import load_model

        return load_model(path, device=device, step=step)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path | nn.Module,
        *,
        tokenizer: Any = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | None = None,
    ) -> "HookedGPT":
        """Take over a GPT-2, Llama or GPT-NeoX model; see lab.pretrained.from_pretrained."""
        from lab.pretrained import from_pretrained

        return from_pretrained(source, tokenizer=tokenizer, device=device, dtype=dtype)

    def to_hf(self) -> Any:
        """Return a transformers model with the same logits; see lab.families.hugging_face.to_hf."""
        from lab.families.hugging_face import to_hf

        return to_hf(self)


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
