"""HookedGPT: the model that people import, with everything that can be done with one in a line.

The forward pass is `lab.model`; each method here calls the module that does the work.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lab.attention_reads import Observer
from lab.checkpoint import load_model, save_model
from lab.config import SampleConfig
from lab.families.hugging_face import to_hf
from lab.gates import GateTensors, HeadGates
from lab.generation import generate
from lab.lens.folding import fold_norms
from lab.lens.old_checkpoint import load_tl_checkpoint
from lab.model import GPT
from lab.pretrained import from_pretrained
from lab.shapes import GivenMask, Tokens


class HookedGPT(GPT):
    """A GPT with TransformerLens's names: read it, edit it, gate its heads.

    Useful pattern: `logits, cache = model.run_with_cache(tokens, names_filter="hook_embed")`.

    >>> from lab import ModelConfig
    >>> model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=4))
    >>> tokens = torch.tensor([[0, 1, 2]])
    >>> model(tokens).shape
    torch.Size([1, 3, 5])
    >>> silenced = ("blocks.0.attn.hook_z", lambda z, hook: 0 * z)
    >>> model.run_with_hooks(tokens, fwd_hooks=[silenced]).shape
    torch.Size([1, 3, 5])
    """

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
        """Return the tokens with max_new_tokens drawn after them; see lab.generation.steps.

        >>> from lab import ModelConfig
        >>> model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=4))
        >>> model.generate(torch.tensor([[0, 1]]), max_new_tokens=2, seed=0).shape
        torch.Size([1, 4])
        """
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
        return fold_norms(self)

    def save(self, path: str | Path) -> None:
        """Write config and weights to a new folder; see lab.checkpoint.save_model."""
        save_model(self, path)

    @classmethod
    def from_tl_checkpoint(
        cls, source: str | Path | Mapping[str, Any], cfg: Any, device: str = "cpu"
    ) -> "HookedGPT":
        """Load an old HookedTransformer; see lab.lens.old_checkpoint.load_tl_checkpoint."""
        return load_tl_checkpoint(source, cfg, cls, device=device)

    def to_boot_native(self) -> Any:
        """Return it as a TransformerBridge.boot_native; see lab.lens.boot_native.to_boot_native."""
        from lab.lens.boot_native import to_boot_native  # loads the bridges

        return to_boot_native(self)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu", step: int | None = None) -> "HookedGPT":
        """Read a model from a run folder or a checkpoint folder; see lab.checkpoint.load_model."""
        return load_model(path, cls, device=device, step=step)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path | nn.Module,
        *,
        tokenizer: Any = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str | None = None,
    ) -> "HookedGPT":
        """Take over a GPT-2, Llama or GPT-NeoX model; see lab.pretrained.from_pretrained."""
        return from_pretrained(source, cls, tokenizer=tokenizer, device=device, dtype=dtype)

    def to_hf(self) -> Any:
        """Return a transformers model with the same logits; see lab.families.hugging_face.to_hf."""
        return to_hf(self)
