"""The next token while nobody looks: the kernels of a forward pass without its questions.

A token costs some hundred small operations, and asking at each of them whether somebody listens
costs about as much again. A Decoder asks once a token, and while nobody does runs the kernels in a
row. What the prompt needs, and a token that somebody looks at, is `HookedGPT.forward`'s.
"""

from typing import cast

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from lab.attention import Sight
from lab.blocks import Block, Pass
from lab.gates import GateTensors
from lab.kv_cache import KeyValueCache
from lab.model import HookedGPT
from lab.partial_pass import can_be_entered
from lab.positions import token_positions, turned, turns_of
from lab.shapes import HeadVectors, Logits, Resid, Tokens

Shown = Bool[Tensor, "batch 1 1 key_pos"] | None
"""The keys that are real tokens; None: all are."""


class Decoder:
    """One more token of every sequence of a cache, as forward computes it.

    Weights are laid side by side once: edits of a model's weights are seen by the next Decoder.
    """

    def __init__(self, model: HookedGPT, cache: KeyValueCache, gates: GateTensors | None) -> None:
        """Prepare the layers.

        Args:
            model: The model that filled the cache.
            cache: Keys and values of the prompt, with room for all tokens to come.
            gates: Interventions on heads at every step.
        """
        self.model, self.cache = model, cache
        self.gates = None if gates is None else gates.like(model.W_E)
        self.known = can_be_entered(model)
        self.modules = list(model.modules())
        self.layers = []
        if self.known:
            blocks = enumerate(model.blocks)
            self.layers = [DecodedLayer(cast(Block, block), layer) for layer, block in blocks]

    def nobody_looks(self) -> bool:
        """Tell whether `step` does what forward would: no hook stands anywhere in the model."""
        for module in self.modules:
            if module._forward_hooks or module._forward_pre_hooks:
                return False
        return self.known

    @torch.no_grad()
    def step(self, new: Tokens) -> Logits:
        """Return the logits [batch, 1, d_vocab] behind the new tokens [batch, 1]."""
        model, cache = self.model, self.cache
        config, weight = model.config, model.W_E
        real = cache.extend_mask(None, len(new), 1)
        positions = token_positions(real, cache.length, 1, weight.device)
        run = Pass(
            positions=positions,
            first_pos=cache.length,
            sight=Sight(causal=True, real=real),
            gates=self.gates,
            observe=None,
            path="fused",
            kv_cache=cache,
            turns=turns_of(config, positions, weight.dtype),
            last_read=None,
        )
        shown = None if real is None else real[:, None, None]
        residual = model.embed_input(new, run)
        for layer in self.layers:
            residual = layer(residual, run, shown)
        cache.length += 1
        return model.unembed(model.ln_final.fused(residual))


class DecodedLayer:
    """One block, at one position."""

    def __init__(self, block: Block, layer: int) -> None:
        """Lay the weights of q, k and v side by side."""
        attn = block.attn
        self.block, self.attn, self.layer = block, attn, layer
        weights, biases = (attn.W_Q, attn.W_K, attn.W_V), (attn.b_Q, attn.b_K, attn.b_V)
        self.sizes, self.d_head = [len(each) for each in weights], attn.W_Q.shape[-1]
        self.qkv = torch.cat([each.detach().mT for each in weights]).flatten(0, 1)
        self.bias = torch.cat([each.detach() for each in biases]).flatten()
        self.W_O, self.b_O = attn.W_O.detach().flatten(0, 1).T, attn.b_O.detach()

    def __call__(self, residual: Resid, run: Pass, shown: Shown) -> Resid:
        """Return the residual stream behind this layer."""
        block, written = self.block, residual + self.b_O
        if self.sizes[0]:
            z = self.mixed(block.ln1.fused(residual), run, shown)
            written = residual + F.linear(z.flatten(2), self.W_O, self.b_O)
        if block.attn_only:
            return written
        read = residual if block.parallel else written
        return written + block.mlp.forward(block.ln2.fused(read))

    def mixed(self, normalised: Resid, run: Pass, shown: Shown) -> HeadVectors:
        """Return z of the new position, whose keys and values go into the cache."""
        attn, here, batch = self.attn, run.first_pos, len(normalised)
        vectors = F.linear(normalised, self.qkv, self.bias)
        vectors = vectors.view(batch, 1, sum(self.sizes), self.d_head)
        q, k, v = vectors.split_with_sizes(self.sizes, dim=2)
        if run.turns is not None:
            q = turned(q, run.turns, attn.rotary_adjacent_pairs)
            k = turned(k, run.turns, attn.rotary_adjacent_pairs)
        keys, values = cast(KeyValueCache, run.kv_cache).rooms(self.layer)
        keys.select(2, here).copy_(k.squeeze(1))
        values.select(2, here).copy_(v.squeeze(1))
        keys, values = keys.narrow(2, 0, here + 1), values.narrow(2, 0, here + 1)
        if attn.kv_order is not None:
            keys, values = keys[:, attn.kv_order], values[:, attn.kv_order]
        rows = q.reshape(batch, keys.shape[1], -1, self.d_head)  # readers of one key head together
        z = F.scaled_dot_product_attention(rows, keys, values, attn_mask=shown, scale=attn.scale)
        z = z.reshape(batch, 1, -1, self.d_head)
        if run.gates is None:
            return z
        return run.gates.apply(self.layer, z, run.positions, attn.head_ids)
