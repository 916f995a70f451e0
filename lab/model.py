"""HookedGPT: a decoder-only Transformer whose every activation can be read and edited.

The file reads top to bottom like the model: embed, normalise, attend, MLP, block, unembed, and
the forward pass that runs them. Each activation passes through a HookPoint, named as in
TransformerLens. A HookPoint with listeners gets the activation computed step by step; without
listeners the fused kernel of PyTorch does several steps at once. What surrounds the model for
TransformerLens's tools is in `lab.tl_surface`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint

from lab.attention import (
    AttentionReads,
    KeyValueCache,
    attention_pattern,
    attention_scores,
    fused_attention,
    mix_values,
)
from lab.config import ModelConfig, SampleConfig, require_choice
from lab.gates import GateTensors, HeadGates
from lab.shapes import HeadVectors, Logits, Resid, Tokens
from lab.tl_surface import TransformerLensSurface

AttentionPath = Literal["auto", "fused", "explicit"]
Observer = Callable[[int, AttentionReads], None]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def listened(*hooks: HookPoint) -> bool:
    """Tell whether anybody listens on one of these hook points, forward or backward."""
    return any(
        hook._forward_hooks
        or hook._forward_pre_hooks
        or hook._backward_hooks
        or hook._backward_pre_hooks
        for hook in hooks
    )


class Embed(nn.Module):
    """Token ids to vectors."""

    def __init__(self, config: ModelConfig) -> None:
        """Make room for one vector a token id."""
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(config.d_vocab, config.d_model))

    def forward(self, tokens: Tokens) -> Resid:
        """Look up the vector of each token."""
        try:
            return F.embedding(tokens, self.W_E)
        except IndexError:
            raise ValueError(
                f"token ids must be from 0 to {len(self.W_E) - 1}, "
                f"got {tokens.min().item()} to {tokens.max().item()}"
            ) from None


class PosEmbed(nn.Module):
    """Positions to vectors that are added to the embedding: learned, or fixed waves."""

    def __init__(self, config: ModelConfig) -> None:
        """Make room for one learned vector a position, or compute the waves."""
        super().__init__()
        if config.positional_embedding_type == "sinusoidal":
            waves = sinusoidal_positions(config.n_ctx, config.d_model).float()
            self.register_buffer("W_pos", waves, persistent=False)
        else:
            self.W_pos = nn.Parameter(torch.empty(config.n_ctx, config.d_model))

    def forward(self, tokens: Tokens, first_pos: int) -> Resid:
        """Return a copy of the position vectors for every sequence of the batch."""
        vectors = self.W_pos[first_pos : first_pos + tokens.shape[1]]
        return repeat(vectors, "pos d_model -> batch pos d_model", batch=tokens.shape[0]).clone()


class LayerNorm(nn.Module):
    """Centre each vector, divide by its standard deviation, then scale and shift."""

    def __init__(self, config: ModelConfig) -> None:
        """Start as the plain normalisation: w = 1, b = 0."""
        super().__init__()
        self.eps = config.eps
        self.w = nn.Parameter(torch.ones(config.d_model))
        self.b = nn.Parameter(torch.zeros(config.d_model))
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, residual: Resid) -> Resid:
        """Normalise over d_model."""
        if not listened(self.hook_scale, self.hook_normalized):
            return F.layer_norm(residual, self.w.shape, self.w, self.b, self.eps)
        centred = residual - residual.mean(dim=-1, keepdim=True)
        variance = centred.pow(2).mean(dim=-1, keepdim=True)
        scale = self.hook_scale((variance + self.eps).sqrt())
        return self.hook_normalized(centred / scale) * self.w + self.b


class Attention(nn.Module):
    """Every head reads the residual stream, mixes values over positions, and writes back."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        """Make room for the weights of every head, in TransformerLens's shapes."""
        super().__init__()
        self.layer = layer
        self.head_ids = config.heads_of(layer)
        heads, width, d_head = len(self.head_ids), config.d_model, config.head_width
        self.scale = d_head**-0.5
        self.W_Q = nn.Parameter(torch.empty(heads, width, d_head))
        self.W_K = nn.Parameter(torch.empty(heads, width, d_head))
        self.W_V = nn.Parameter(torch.empty(heads, width, d_head))
        self.W_O = nn.Parameter(torch.empty(heads, d_head, width))
        self.b_Q = nn.Parameter(torch.zeros(heads, d_head))
        self.b_K = nn.Parameter(torch.zeros(heads, d_head))
        self.b_V = nn.Parameter(torch.zeros(heads, d_head))
        self.b_O = nn.Parameter(torch.zeros(width))
        self.rotary_base = config.rotary_base
        self.rotary = config.positional_embedding_type == "rotary"
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        if self.rotary:
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z = HookPoint()

    def forward(
        self,
        normalised: Resid,
        *,
        gates: GateTensors | None,
        observe: Observer | None,
        path: AttentionPath,
        kv_cache: KeyValueCache | None,
    ) -> Resid:
        """Return what all heads together add to the residual stream."""
        q = self.hook_q(project(normalised, self.W_Q, self.b_Q))
        k = self.hook_k(project(normalised, self.W_K, self.b_K))
        v = self.hook_v(project(normalised, self.W_V, self.b_V))
        first_pos = 0 if kv_cache is None else kv_cache.length
        if self.rotary:
            q = self.hook_rot_q(rotate(q, first_pos, self.rotary_base))
            k = self.hook_rot_k(rotate(k, first_pos, self.rotary_base))
        if kv_cache is not None:
            k, v = kv_cache.extend(self.layer, k, v)
        if observe is not None:
            observe(self.layer, AttentionReads(q, k, v, scale=self.scale))
        z = self.attend(q, k, v, path)
        if gates is not None:
            z = gates.apply(self.layer, z, first_pos, self.head_ids)
        z = self.hook_z(z)
        W_O = rearrange(self.W_O, "head d_head d_model -> d_model (head d_head)")
        return F.linear(
            rearrange(z, "batch pos head d_head -> batch pos (head d_head)"), W_O, self.b_O
        )

    def attend(
        self,
        q: HeadVectors,
        k: Float[Tensor, "batch key_pos head d_head"],
        v: Float[Tensor, "batch key_pos head d_head"],
        path: AttentionPath,
    ) -> HeadVectors:
        """Mix the values, through the matrix if somebody wants to see it."""
        seen = listened(self.hook_attn_scores, self.hook_pattern)
        if path == "fused" and seen:
            raise ValueError(
                "attention='fused' never builds the scores and the pattern, "
                f"but hooks listen on them in layer {self.layer}; use attention='auto'"
            )
        if path != "explicit" and not seen:
            return fused_attention(q, k, v, scale=self.scale)
        scores = self.hook_attn_scores(attention_scores(q, k, scale=self.scale))
        pattern = self.hook_pattern(attention_pattern(scores))
        return mix_values(pattern, v)


class MLP(nn.Module):
    """Two linear maps with a non-linearity between, at each position on its own."""

    def __init__(self, config: ModelConfig) -> None:
        """Make room for the weights."""
        super().__init__()
        self.act = ACTIVATIONS[config.act_fn]
        self.W_in = nn.Parameter(torch.empty(config.d_model, config.mlp_width))
        self.b_in = nn.Parameter(torch.zeros(config.mlp_width))
        self.W_out = nn.Parameter(torch.empty(config.mlp_width, config.d_model))
        self.b_out = nn.Parameter(torch.zeros(config.d_model))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, normalised: Resid) -> Resid:
        """Return what the MLP adds to the residual stream."""
        pre = self.hook_pre(F.linear(normalised, self.W_in.T, self.b_in))
        post = self.hook_post(self.act(pre))
        return F.linear(post, self.W_out.T, self.b_out)


class Block(nn.Module):
    """One layer: the residual stream passes by; attention and MLP each read it and add to it."""

    hook_out_is_single_residual_stream = True
    """What TransformerLens's logit lens asks of a block."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        """Build the two halves of the layer."""
        super().__init__()
        self.ln1 = LayerNorm(config)
        self.attn = Attention(config, layer)
        self.ln2 = LayerNorm(config)
        self.mlp = MLP(config)
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()
        self.hook_resid_mid, self.hook_mlp_out = HookPoint(), HookPoint()
        self.hook_resid_post = HookPoint()

    def forward(
        self,
        residual: Resid,
        *,
        gates: GateTensors | None = None,
        observe: Observer | None = None,
        path: AttentionPath = "auto",
        kv_cache: KeyValueCache | None = None,
    ) -> Resid:
        """Return the residual stream after this layer."""
        residual = self.hook_resid_pre(residual)
        attn_out = self.attn(
            self.ln1(residual), gates=gates, observe=observe, path=path, kv_cache=kv_cache
        )
        residual = self.hook_resid_mid(residual + self.hook_attn_out(attn_out))
        return self.hook_resid_post(residual + self.hook_mlp_out(self.mlp(self.ln2(residual))))


class Unembed(nn.Module):
    """The residual stream to logits."""

    def __init__(self, config: ModelConfig) -> None:
        """Make room for one column a token id."""
        super().__init__()
        self.W_U = nn.Parameter(torch.empty(config.d_model, config.d_vocab))
        self.b_U = nn.Parameter(torch.zeros(config.d_vocab))

    def forward(self, normalised: Resid) -> Logits:
        """Score every token id at every position."""
        return F.linear(normalised, self.W_U.T, self.b_U)


class TiedUnembed(nn.Module):
    """Unembed with the transposed embedding: one parameter for both."""

    def __init__(self, config: ModelConfig, embed: Embed) -> None:
        """Share the embedding's parameter."""
        super().__init__()
        self.b_U = nn.Parameter(torch.zeros(config.d_vocab))
        self._shared = (embed,)  # in a tuple, so that it is not registered a second time
        self.register_state_dict_post_hook(write_tied_weight)

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """The embedding, transposed."""
        return self._shared[0].W_E.T

    def forward(self, normalised: Resid) -> Logits:
        """Score every token id at every position."""
        return F.linear(normalised, self._shared[0].W_E, self.b_U)


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
        self.adds_positions = config.positional_embedding_type != "rotary"
        if self.adds_positions:
            self.pos_embed = PosEmbed(config)
            self.hook_pos_embed = HookPoint()
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.ln_final = LayerNorm(config)
        if config.tie_word_embeddings:
            self.unembed = TiedUnembed(config, self.embed)
            self.register_load_state_dict_pre_hook(check_tied_weight)
        else:
            self.unembed = Unembed(config)
        self.init_weights()
        self.setup()

    def init_weights(self) -> None:
        """Draw every matrix from N(0, initializer_range^2); the global generator is left alone."""
        generator = torch.Generator().manual_seed(self.config.seed)
        for name, parameter in self.named_parameters():
            if name.rpartition(".")[2].startswith("W_"):
                nn.init.normal_(parameter, std=self.config.initializer_range, generator=generator)

    def forward(
        self,
        input: Tokens | Resid,
        return_type: Literal["logits", "loss", "both"] | None = "logits",
        loss_per_token: bool = False,
        *,
        tokens: Tokens | None = None,
        gates: HeadGates | GateTensors | None = None,
        observe: Observer | None = None,
        attention: AttentionPath = "auto",
        kv_cache: KeyValueCache | None = None,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
    ) -> Any:
        """Run the model, or some of its layers.

        Args:
            input: Token ids, or with start_at_layer the residual stream before that layer.
            return_type: "logits" [batch, pos, d_vocab]; "loss", the mean of -ln p(next token);
                "both", the pair; None, nothing (for observers).
            loss_per_token: Return the loss of each position but the last: [batch, pos - 1].
            tokens: The ids that a loss needs when input is a residual stream.
            gates: Which heads are scaled and what fills the gap, just before hook_z.
            observe: Called once a layer, in order, with (layer, AttentionReads).
            attention: "auto" builds scores and pattern only in layers where a hook listens on them;
                "explicit" always; "fused" never, and refuses such hooks.
            kv_cache: Holds the positions computed before; input then holds the new ones only.
            start_at_layer: First layer to run; negative counts from the end.
            stop_at_layer: Stop before this layer and return the residual stream there.

        Returns:
            What return_type says, or with stop_at_layer the residual stream.

        Raises:
            ValueError: Too many positions, token ids out of range, or arguments that exclude each
                other.
        """
        require_choice("attention", attention, ("auto", "fused", "explicit"))
        if return_type not in ("logits", "loss", "both", None):
            raise ValueError(f"return_type must be logits, loss, both or None, got {return_type!r}")
        if kv_cache is not None and not (start_at_layer is stop_at_layer is None):
            raise ValueError(
                "kv_cache must be used with all layers, got start_at_layer or stop_at_layer"
            )
        if isinstance(gates, HeadGates):
            gates = gates.tensors(self)
        if gates is not None:
            gates = gates.like(self.W_E)

        residual = self.embed_input(input, kv_cache) if start_at_layer is None else input
        layers = range(self.cfg.n_layers)[start_at_layer:stop_at_layer]
        for layer in layers:
            residual = self.blocks[layer](
                residual, gates=gates, observe=observe, path=attention, kv_cache=kv_cache
            )
        if kv_cache is not None:
            kv_cache.length += input.shape[1]
        if stop_at_layer is not None:
            return residual
        if return_type is None:
            return None
        logits = self.unembed(self.ln_final(residual))
        if return_type == "logits":
            return logits
        targets = tokens if tokens is not None else input
        if targets.ndim != 2:
            raise ValueError("a loss with start_at_layer needs tokens=, got none")
        loss = next_token_loss(logits, targets, loss_per_token)
        return loss if return_type == "loss" else (logits, loss)

    def embed_input(self, tokens: Tokens, kv_cache: KeyValueCache | None) -> Resid:
        """Return the residual stream before the first layer."""
        first_pos = 0 if kv_cache is None else kv_cache.length
        n_pos = first_pos + tokens.shape[1]
        if not 0 < n_pos <= self.cfg.n_ctx:
            raise ValueError(
                f"a sequence must have 1 to n_ctx = {self.cfg.n_ctx} tokens, got {n_pos}"
            )
        residual = self.hook_embed(self.embed(tokens))
        if self.adds_positions:
            residual = residual + self.hook_pos_embed(self.pos_embed(tokens, first_pos))
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
    ) -> Int[Tensor, "batch new_pos"]:
        """Return the tokens with max_new_tokens drawn after them; see lab.generation.generate."""
        from lab.generation import generate

        sample = SampleConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return generate(self, tokens, sample, max_new_tokens, gates=gates)

    def save(self, path: str | Path) -> None:
        """Write config and weights to a new folder; see lab.checkpoint.save_model."""
        from lab.checkpoint import save_model

        save_model(self, path)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu", step: int | None = None) -> "HookedGPT":
        """Read a model from a run folder or a checkpoint folder; see lab.checkpoint.load_model."""
        from lab.checkpoint import load_model

        return load_model(path, device=device, step=step)


def project(
    normalised: Resid,
    weight: Float[Tensor, "head d_model d_head"],
    bias: Float[Tensor, "head d_head"],
) -> HeadVectors:
    """Return one vector for each position and head, from one matrix product for all heads."""
    flat = rearrange(weight, "head d_model d_head -> (head d_head) d_model")
    vectors = F.linear(normalised, flat, bias.flatten())
    d_head = weight.shape[-1]  # rather than the number of heads, which may be 0
    return rearrange(vectors, "batch pos (head d_head) -> batch pos head d_head", d_head=d_head)


def rotate(x: HeadVectors, first_pos: int, base: float) -> HeadVectors:
    """Turn dimension pairs (i, i + d_head/2) by position * base^(-2i / d_head).

    Source: Su et al. 2021 (RoPE), in the half-split order of GPT-NeoX and Llama.
    """
    half = x.shape[-1] // 2
    frequencies = base ** -(torch.arange(half, device=x.device, dtype=torch.float64) / half)
    positions = torch.arange(
        first_pos, first_pos + x.shape[1], device=x.device, dtype=torch.float64
    )
    angles = torch.outer(positions, frequencies).unsqueeze(1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def sinusoidal_positions(n_ctx: int, d_model: int) -> Float[Tensor, "pos d_model"]:
    """Return sin(pos / 10000^(2i / d_model)) at 2i and the cosine at 2i + 1.

    Source: Vaswani et al. 2017, section 3.5.
    """
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.outer(torch.arange(n_ctx, dtype=torch.float64), 10_000.0 ** -(even / d_model))
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)
    return rearrange(waves, "pos pair two -> pos (pair two)")


def next_token_loss(logits: Logits, tokens: Tokens, per_token: bool = False) -> Tensor:
    """Return the mean of -ln p(next token), or [batch, pos - 1] of it, in nats."""
    losses = F.cross_entropy(
        rearrange(logits[:, :-1], "batch pos d_vocab -> batch d_vocab pos"),
        tokens[:, 1:],
        reduction="none",
    )
    return losses if per_token else losses.mean()


def write_tied_weight(
    module: TiedUnembed, state: dict[str, Tensor], prefix: str, _: dict[str, Any]
) -> None:
    """Write W_U beside W_E, as an untied model has it."""
    state[prefix + "W_U"] = module.W_U.detach().clone()


def check_tied_weight(module: HookedGPT, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Take W_U out of what is loaded, once it agrees with W_E."""
    W_U, W_E = state.pop(prefix + "unembed.W_U", None), state.get(prefix + "embed.W_E")
    if W_U is not None and W_E is not None and not torch.equal(W_U, W_E.T):
        raise ValueError(
            "unembed.W_U must be embed.W_E transposed in a model with tied embeddings, got another "
            "matrix; load these weights with tie_word_embeddings=False"
        )
