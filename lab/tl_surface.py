"""What TransformerLens's tools expect around a model: config, caches, stacks, look-ups.

HookedGPT's abstract base. It computes nothing of the forward pass: that is `lab.model`, which
reads on its own. Names and behaviour are those of TransformerLens's HookedTransformer, apart from
three silences of the base class that speak up here: an unknown hook name, an empty cache, a
cached tensor that a later in-place edit changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache, FactoredMatrix, HookedRootModule
from transformer_lens.config.transformer_lens_config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from lab.config import ModelConfig
from lab.naming import head_label, unknown_name
from lab.shapes import Tokens

NamesFilter = str | list[str] | Callable[[str], bool] | None


@dataclass(repr=False)
class HookedGPTConfig(TransformerLensConfig):
    """TransformerLens's mutable view of a ModelConfig, with the fields that its tools look for."""

    d_vocab_out: int = -1
    use_attn_in: bool = False
    use_hook_mlp_in: bool = False
    attention_dir: str = "causal"
    parallel_attn_mlp: bool = False
    rotary_dim: int | None = None
    rotary_base: float = 10_000.0
    rotary_adjacent_pairs: bool = False
    tie_word_embeddings: bool = False
    seed: int = 0
    init_mode: str = "gpt2"
    initializer_range: float = 0.02

    @classmethod
    def of(cls, config: ModelConfig) -> "HookedGPTConfig":
        """Translate a ModelConfig."""
        return cls(
            d_model=config.d_model,
            d_head=config.head_width,
            n_layers=config.n_layers,
            n_ctx=config.n_ctx,
            n_heads=config.n_heads,
            d_mlp=config.mlp_width,
            d_vocab=config.d_vocab,
            d_vocab_out=config.vocab_out,
            device="cpu",
            default_prepend_bos=False,
            positional_embedding_type=config.positional_embedding_type,
            act_fn=config.act_fn,
            normalization_type=config.normalization_type,
            uses_rms_norm=config.normalization_type == "RMS",
            final_rms=config.normalization_type == "RMS",
            n_key_value_heads=config.n_key_value_heads,
            attn_only=config.attn_only,
            gated_mlp=config.gated_mlp,
            attention_dir=config.attention_dir,
            parallel_attn_mlp=config.parallel_attn_mlp,
            rotary_dim=config.rotary_width or None,
            rotary_base=config.rotary_base,
            rotary_adjacent_pairs=config.rotary_adjacent_pairs,
            tie_word_embeddings=config.tie_word_embeddings,
            eps=config.eps,
            seed=config.seed,
            initializer_range=config.initializer_range,
        )


FLAGGED_HOOKS = {
    "hook_result": "use_attn_result",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
    "hook_attn_in": "use_attn_in",
    "hook_mlp_in": "use_hook_mlp_in",
}
"""Hooks on what a forward pass computes only on request, and the cfg flag that asks for it.

A hook that somebody puts on one of them by name asks for it too; a filter that merely matches it
(caching everything, say) does not.
"""


class PrunedGPTConfig(HookedGPTConfig):
    """The view of a model with pruned heads: whoever counts on n_heads would mislabel them."""

    # An int to everybody who reads it: it only raises.
    @property
    def n_heads(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Refuse: no single number of heads holds for every layer, nor do their ids count up."""
        raise ValueError(
            "n_heads must be the same heads in every layer for TransformerLens's tools, got a "
            "model with pruned heads; use headlab's probes (they keep the original ids), or these "
            "tools on the unpruned model with gates"
        )

    @n_heads.setter
    def n_heads(self, _: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Keep no number."""

    def __post_init__(self) -> None:
        """Skip the checks of the base class, which read n_heads; ModelConfig has checked it all."""


class NamedModules(dict[str, nn.Module]):
    """TransformerLens's table of modules by name, which says so when a name is unknown."""

    def __missing__(self, name: str) -> nn.Module:
        """Raise KeyError with the closest hook names."""
        hooks = [known for known, module in self.items() if isinstance(module, HookPoint)]
        raise KeyError(unknown_name("hook", name, hooks))


class TransformerLensSurface(HookedRootModule, ABC):
    """A HookedRootModule with everything around `forward` that TransformerLens's tools touch."""

    cfg: HookedGPTConfig
    embed: Any
    pos_embed: Any
    blocks: Any
    ln_final: Any
    unembed: Any
    tokenizer: Any = None
    provenance: str | None = None
    """Where weights that were not trained here come from; tables repeat it."""

    def __init__(self, config: ModelConfig) -> None:
        """Hold the frozen description and TransformerLens's view of it."""
        super().__init__()
        self._config = config
        view = HookedGPTConfig if config.kept_heads is None else PrunedGPTConfig
        self.cfg = view.of(config)

    @property
    def config(self) -> ModelConfig:
        """The frozen description that is saved with the weights."""
        return self._config

    @abstractmethod
    def forward(self, input: Tensor) -> Any:
        """Run the model; see HookedGPT.forward."""

    def setup(self) -> None:
        """Name every module and hook; call it again after a module was replaced."""
        super().setup()
        self.mod_dict = NamedModules(self.mod_dict)

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> "TransformerLensSurface":
        """Move or cast the parameters, and let cfg.device and cfg.dtype follow them."""
        super()._apply(fn, recurse)
        weight = next(self.parameters())
        self.cfg.device, self.cfg.dtype = str(weight.device), weight.dtype
        return self

    # Caches ------------------------------------------------------------------------------------

    def run_with_cache(
        self,
        *model_args: Any,
        return_cache_object: bool = True,
        remove_batch_dim: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        """Run the model and return (output, ActivationCache) of copies of the activations.

        Args:
            *model_args: What forward takes.
            return_cache_object: False returns the plain dict of tensors by hook name.
            remove_batch_dim: Drop the batch axis of a batch of one.
            **kwargs: names_filter (a hook name, several, or a predicate), device, incl_bwd, ... as
                in TransformerLens, and what forward takes by keyword.

        Raises:
            KeyError: names_filter names a hook that does not exist, or matches none.
        """
        out, cache = super().run_with_cache(
            *model_args, remove_batch_dim=remove_batch_dim, **kwargs
        )
        if not return_cache_object:
            return out, cache
        return out, ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)

    def get_caching_hooks(self, names_filter: NamesFilter = None, *args: Any, **kwargs: Any) -> Any:
        """Return (cache, forward hooks, backward hooks) as TransformerLens does, storing copies.

        Raises:
            KeyError: names_filter names a hook that does not exist, or matches none.
        """
        if names_filter is None or callable(names_filter):
            asked = [
                name
                for name in self.hook_dict
                if self.computed(name) and (names_filter is None or names_filter(name))
            ]
            if not asked:
                raise KeyError(
                    "names_filter must match a hook, got a predicate that is false for each"
                )
        else:
            asked = [names_filter] if isinstance(names_filter, str) else list(names_filter)
            for name in asked:
                if name not in self.hook_dict:
                    raise KeyError(unknown_name("hook", name, self.hook_dict))
        cache, fwd, bwd = super().get_caching_hooks(asked, *args, **kwargs)
        return cache, [(n, copying(f)) for n, f in fwd], [(n, copying(f)) for n, f in bwd]

    def computed(self, hook_name: str) -> bool:
        """Tell whether a forward pass computes what a hook stands on without being asked."""
        flag = FLAGGED_HOOKS.get(hook_name.rpartition(".")[2])
        return flag is None or bool(getattr(self.cfg, flag))

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Compute what each head adds on its own, for attn.hook_result."""
        self.cfg.use_attn_result = use_attn_result

    def set_use_split_qkv_input(self, use_split_qkv_input: bool) -> None:
        """Fork the stream before ln1 for q, k and v of each head: attn.hook_q_input and fellows."""
        self.cfg.use_split_qkv_input = use_split_qkv_input

    def set_use_attn_in(self, use_attn_in: bool) -> None:
        """Fork the stream before ln1 for each head, for attn.hook_attn_in.

        Raises:
            ValueError: Query heads share key heads, so no fork belongs to one head alone.
        """
        if use_attn_in and self.config.kv_heads != self.config.n_heads:
            raise ValueError(
                "use_attn_in must be off in grouped-query attention, whose heads share keys; "
                "use set_use_split_qkv_input"
            )
        self.cfg.use_attn_in = use_attn_in

    def set_use_hook_mlp_in(self, use_hook_mlp_in: bool) -> None:
        """Give the stream before ln2 a hook of its own: hook_mlp_in."""
        self.cfg.use_hook_mlp_in = use_hook_mlp_in

    # Weights by TransformerLens's names -----------------------------------------------------------

    def _stack(self, module: str, name: str) -> Tensor:
        """Stack one weight of every block."""
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
        """The position vectors, learned or sinusoidal; rotary models have none."""
        return self.pos_embed.W_pos

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
        total = torch.zeros_like(self.b_O[0])
        for block in self.blocks[:layer]:
            total = total + block.attn.b_O
            if include_mlp_biases and not self.config.attn_only:
                total = total + block.mlp.b_out
        return total + self.blocks[layer].attn.b_O if mlp_input else total

    # Tokens and labels ----------------------------------------------------------------------------

    def to_tokens(self, input: Tokens | Int[Tensor, " pos"], *_: Any, **__: Any) -> Tokens:
        """Return token ids as a batch; a model without a tokenizer takes ids only."""
        if isinstance(input, Tensor):
            return input if input.ndim == 2 else input.unsqueeze(0)
        raise ValueError(f"input must be a tensor of token ids, got {type(input).__name__}")

    def to_single_token(self, token: int) -> int:
        """Return the id itself; a model without a tokenizer takes ids only."""
        if isinstance(token, int):
            return token
        raise ValueError(f"token must be a token id, got {token!r}")

    def tokens_to_residual_directions(self, tokens: int | Int[Tensor, "..."]) -> Tensor:
        """Return the columns of W_U of the tokens: [..., d_model]."""
        return self.W_U.T[tokens]

    def all_head_labels(self) -> list[str]:
        """Return L0H0, L0H1, ... in the order of the weights, by the heads' original ids."""
        return [
            head_label(layer, head)
            for layer in range(self.cfg.n_layers)
            for head in self.config.heads_of(layer)
        ]

    def blocks_with(self, submodule: str) -> list[tuple[int, nn.Module]]:
        """Return (layer, block) of the blocks that have a submodule, say 'attn'."""
        return [
            (layer, block)
            for layer, block in enumerate(self.blocks)
            if submodule in dict(block.named_children())
        ]


def copying(save: Callable[..., None]) -> Callable[..., None]:
    """Give a caching hook a copy, so that nobody's in-place edit changes the cache."""

    def save_copy(tensor: Tensor, *, hook: HookPoint) -> None:
        save(tensor.clone(), hook=hook)

    return save_copy
