"""The next token while nobody looks: a forward pass without its questions.

Checks of a request, and the question whether somebody listens, cost a small model as much as a
token. A Decoder asks once a token, then takes the steps of `lab.blocks` in a row. The prompt, and a
token that somebody looks at, are `HookedGPT.forward`'s.
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
    """One more token of every sequence of a cache, as forward computes it.

    Weights are laid side by side once: edits of a model's weights are seen by the next Decoder.
    """

    def __init__(self, model: GPT, cache: KeyValueCache, gates: GateTensors | None) -> None:
        """Prepare the layers.

        Args:
            model: The model that filled the cache.
            cache: Keys and values of the prompt, with room for all tokens to come.
            gates: Interventions on heads at every step.
        """
        self.model, self.cache, self.gates = model, cache, gates
        self.known = can_be_entered(model)
        self.modules = list(model.modules())
        if self.known:
            self.blocks = blocks_of(model)
            self.laid = [block.attn.laid() for block in self.blocks]
            self.gates = None if gates is None else gates.like(model.W_E)

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
        weight = model.W_E
        real = cache.extend_mask(None, len(new), 1)
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
        residual = model.embed_input(new, positions, cache.length)
        for layer, block in enumerate(self.blocks):
            residual = block.forward(residual, run, layer)
        cache.length += 1
        return model.unembed(model.ln_final.fused(residual))
