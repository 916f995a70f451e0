"""Fast decoding of one token when the model has no hooks.

In a small model, checking the input and each hook point costs as much as computing a token. A
Decoder checks once per token. If the model has no hooks, it runs the steps of `lab.blocks` in
sequence; otherwise, and for the prompt, `HookedGPT.forward` runs.
"""

import torch

from lab.attention import Sight
from lab.gates import GateTensors
from lab.kv_cache import KeyValueCache
from lab.model import GPT
from lab.partial_pass import blocks_of, can_be_entered
from lab.passes import Pass
from lab.positions import token_positions, turns_of
from lab.shapes import Logits, Tokens


class Decoder:
    """Computes the next logits of every sequence of a cache, as forward does.

    The weights of q, k and v are concatenated once: later edits of a model's weights have no effect
    on this Decoder.
    """

    def __init__(self, model: GPT, cache: KeyValueCache, gates: GateTensors | None) -> None:
        """Prepare the layers.

        Args:
            model: The model that filled the cache.
            cache: Keys and values of the prompt, with room for all new tokens.
            gates: Interventions on heads at every step.
        """
        self.model, self.cache, self.gates = model, cache, gates
        self.known = can_be_entered(model)
        self.modules = list(model.modules())
        if self.known:
            self.blocks = blocks_of(model)
            self.laid = [block.attn.laid() for block in self.blocks]
            self.gates = None if gates is None else gates.like(model.W_E)

    def applies(self) -> bool:
        """Return whether `step` equals forward: no hooks, and only this package's modules."""
        for module in self.modules:
            if module._forward_hooks or module._forward_pre_hooks:
                return False
        return self.known

    @torch.no_grad()
    def step(self, new: Tokens) -> Logits:
        """Return the logits [batch, 1, d_vocab] after the new tokens [batch, 1]."""
        model, cache = self.model, self.cache
        weight = model.W_E
        real = cache.extend_mask(None, len(new), 1)  # [batch, key_pos], or None
        positions = token_positions(real, cache.length, 1, weight.device)
        run = Pass(
            positions=positions,
            first_pos=cache.length,
            sight=Sight(causal=True, real=real),
            turns=turns_of(model.config, positions, weight.dtype),
            gates=self.gates,
            kv_cache=cache,
            laid=self.laid,
            quiet=True,
        )
        residual = model.embed_input(new, positions, cache.length)  # [batch, 1, d_model]
        for layer, block in enumerate(self.blocks):
            residual = block.forward(residual, run, layer)
        cache.length += 1
        return model.unembed(model.ln_final.fused(residual))
