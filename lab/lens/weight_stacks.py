"""The weights of all layers and heads, by TransformerLens's names, and values computed from them.

Stacks are built from the current parameters at each access, without a cache, so edits of weights
take effect at once.
"""

from abc import ABC
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge.composition_scores import CompositionScores
from transformer_lens.utilities.matrix import composition_scores

from lab.checks import require_choice
from lab.lens.hooked_root import HookedRoot
from lab.naming import head_label


class WeightStacks(HookedRoot, ABC):
    """A model whose weights can be read for all layers at once."""

    embed: Any
    pos_embed: Any
    blocks: Any
    ln_final: Any
    unembed: Any

    def _stack(self, module: str, name: str) -> Tensor:
        """Stack one weight of every block."""
        if module == "mlp" and self.config.attn_only:
            raise ValueError(f"{name} needs a model with MLPs, got attn_only=True")
        if module == "attn" and name != "b_O" and self.config.kept_heads is not None:
            raise ValueError(
                f"{name} must have the same heads in every layer to be stacked, got a model with "
                f"pruned heads; read blocks[layer].attn.{name}, whose heads are "
                "config.heads_of(layer)"
            )
        return torch.stack([getattr(getattr(block, module), name) for block in self.blocks])

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """The embedding."""
        return self.embed.W_E

    @property
    def W_pos(self) -> Float[Tensor, "pos d_model"]:
        """The position vectors, learned or sinusoidal.

        Raises:
            ValueError: The model adds none.
        """
        kind = self.config.positional_embedding_type
        if kind not in ("standard", "sinusoidal"):
            raise ValueError(
                f"W_pos needs a model that adds position vectors, got {kind!r} positions"
            )
        return self.pos_embed.W_pos

    @property
    def W_E_pos(self) -> Float[Tensor, "d_vocab_and_pos d_model"]:
        """W_E and W_pos, concatenated: all vectors that the embeddings can write to the stream."""
        return torch.cat([self.W_E, self.W_pos])

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """The unembedding."""
        return self.unembed.W_U

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"]:
        """The unembedding's bias."""
        return self.unembed.b_U

    @property
    def W_Q(self) -> Float[Tensor, "layer head d_model d_head"]:
        """The query weights of every head."""
        return self._stack("attn", "W_Q")

    @property
    def W_K(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        """The key weights of every head."""
        return self._stack("attn", "W_K")

    @property
    def W_V(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        """The value weights of every head."""
        return self._stack("attn", "W_V")

    @property
    def W_O(self) -> Float[Tensor, "layer head d_head d_model"]:
        """The output weights of every head."""
        return self._stack("attn", "W_O")

    @property
    def b_Q(self) -> Float[Tensor, "layer head d_head"]:
        """The query biases."""
        return self._stack("attn", "b_Q")

    @property
    def b_K(self) -> Float[Tensor, "layer kv_head d_head"]:
        """The key biases."""
        return self._stack("attn", "b_K")

    @property
    def b_V(self) -> Float[Tensor, "layer kv_head d_head"]:
        """The value biases."""
        return self._stack("attn", "b_V")

    @property
    def b_O(self) -> Float[Tensor, "layer d_model"]:
        """The attention output biases."""
        return self._stack("attn", "b_O")

    @property
    def W_in(self) -> Float[Tensor, "layer d_model d_mlp"]:
        """The MLPs' input weights."""
        return self._stack("mlp", "W_in")

    @property
    def W_gate(self) -> Float[Tensor, "layer d_model d_mlp"] | None:
        """The gated MLPs' gate weights; None if the MLPs are not gated."""
        return self._stack("mlp", "W_gate") if self.config.gated_mlp else None

    @property
    def W_out(self) -> Float[Tensor, "layer d_mlp d_model"]:
        """The MLPs' output weights."""
        return self._stack("mlp", "W_out")

    @property
    def b_in(self) -> Float[Tensor, "layer d_mlp"]:
        """The MLPs' input biases."""
        return self._stack("mlp", "b_in")

    @property
    def b_out(self) -> Float[Tensor, "layer d_model"]:
        """The MLPs' output biases."""
        return self._stack("mlp", "b_out")

    def shared(self, of_key_heads: Tensor) -> Tensor:
        """Repeat stacked key or value heads for each query head that reads them."""
        return of_key_heads.repeat_interleave(self.config.n_heads // self.config.kv_heads, dim=1)

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q W_K^T of every query head, logically [layer, head, d_model, d_model]."""
        return FactoredMatrix(self.W_Q, self.shared(self.W_K).transpose(-2, -1))

    @property
    def OV(self) -> FactoredMatrix:
        """W_V W_O of every head, logically [layer, head, d_model, d_model]."""
        return FactoredMatrix(self.shared(self.W_V), self.W_O)

    def tl_parameters(self) -> dict[str, Tensor]:
        """Return the weights by name as TransformerLens's SVDInterpreter needs them.

        Key and value weights are repeated for each query head that reads them, so that a head's
        number means the same everywhere; tied embeddings have their unembedding.
        """
        found: dict[str, Tensor] = dict(self.named_parameters())
        found["unembed.W_U"] = self.W_U
        shared = self.config.kv_heads != self.config.n_heads
        for layer, block in enumerate(self.blocks if shared else ()):
            heads = [
                self.config.kv_heads_of(layer).index(self.config.kv_head(head))
                for head in self.config.heads_of(layer)
            ]
            for name in ("W_K", "W_V", "b_K", "b_V"):
                found[f"blocks.{layer}.attn.{name}"] = getattr(block.attn, name)[heads]
        return found

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """Return the sum of the biases written to the residual stream before a layer's input.

        Args:
            layer: Layers below it count; n_layers counts all.
            mlp_input: Also count this layer's attention bias, written before its MLP.
            include_mlp_biases: Whether the MLPs' output biases count.
        """
        if not 0 <= layer <= self.cfg.n_layers:
            raise ValueError(f"layer must be from 0 to {self.cfg.n_layers}, got {layer}")
        if mlp_input and layer == self.cfg.n_layers:
            raise ValueError(f"mlp_input needs a layer below {layer}, got no such layer")
        total = torch.zeros_like(self.b_O[0])
        for block in self.blocks[:layer]:
            total = total + block.attn.b_O
            if include_mlp_biases and not self.config.attn_only:
                total = total + block.mlp.b_out
        return total + self.blocks[layer].attn.b_O if mlp_input else total

    def all_composition_scores(self, mode: Literal["Q", "K", "V"]) -> CompositionScores:
        """Return how much each head reads each earlier head: [layer, head, layer, head].

        |W_OV of the earlier W_QK or W_OV of the later|, as Frobenius norms over those of the two
        factors; 0 where the second head is in the same layer or an earlier one.

        Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".

        Args:
            mode: Whether the later head's queries ("Q"), keys ("K") or values ("V") do the reading.
        """
        require_choice("mode", mode, ("Q", "K", "V"))
        right = {"Q": self.QK, "K": self.QK.T, "V": self.OV}[mode]
        scores = composition_scores(self.OV, right, broadcast_dims=True)
        layers = torch.arange(self.cfg.n_layers, device=scores.device)
        earlier = rearrange(layers, "layer -> layer 1 1 1") < rearrange(layers, "l -> 1 1 l 1")
        return CompositionScores(
            scores=scores.where(earlier, 0.0),
            layer_indices=layers.tolist(),
            head_labels=self.all_head_labels(),
        )

    def all_head_labels(self) -> list[str]:
        """Return L0H0, L0H1, ... in the order of the weights, by the heads' original ids."""
        return [head_label(layer, head) for layer, head in self.config.heads()]
