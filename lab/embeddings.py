"""Embeddings and unembeddings: token ids to residual stream, and residual stream to logits."""

from collections.abc import Callable
from typing import Any

import torch
from einops import repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint

from lab.config import ModelConfig
from lab.initial import draw_parameters
from lab.positions import Positions, sinusoidal_positions
from lab.shapes import Logits, Resid, Tokens
from lab.taps import tap


class Embed(nn.Module):
    """Token ids to vectors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(config.d_vocab, config.d_model))
        self.initial_std = config.initial_std

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        draw_parameters(self, self.initial_std, generator)

    def forward(self, tokens: Tokens) -> Resid:
        try:
            return F.embedding(tokens, self.W_E)
        except IndexError:
            raise ValueError(
                f"token ids must be from 0 to {len(self.W_E) - 1}, "
                f"got {tokens.min().item()} to {tokens.max().item()}"
            ) from None


class PosEmbed(nn.Module):
    """Position vectors that are added to the embedding, learned or sinusoidal."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.positional_embedding_type == "sinusoidal":
            waves = sinusoidal_positions(config.n_ctx, config.d_model).float()
            self.register_buffer("W_pos", waves, persistent=False)
        else:
            self.W_pos = nn.Parameter(torch.empty(config.n_ctx, config.d_model))
        self.initial_std = config.initial_std

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PosEmbed":
        """Move or cast the module; sinusoids are recomputed, so that no rounding stays."""
        super()._apply(fn, recurse)
        if not isinstance(self.W_pos, nn.Parameter):
            self.W_pos = sinusoidal_positions(*self.W_pos.shape).to(self.W_pos)
        return self

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        draw_parameters(self, self.initial_std, generator)

    def forward(
        self, tokens: Tokens, positions: Positions | None = None, first_pos: int = 0
    ) -> Resid:
        """Return a copy of the position vectors for every sequence of the batch.

        Args:
            tokens: The tokens of this call.
            positions: Position of each token; None: consecutive positions.
            first_pos: Positions that were computed before this call.
        """
        if positions is not None and positions.ndim == 2:
            return self.W_pos[positions]
        vectors = self.W_pos[first_pos : first_pos + tokens.shape[1]]
        return repeat(vectors, "pos d_model -> batch pos d_model", batch=len(tokens)).clone()


class Unembed(nn.Module):
    """The residual stream to logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.W_U = nn.Parameter(torch.empty(config.d_model, config.vocab_out))
        self.b_U = nn.Parameter(torch.zeros(config.vocab_out))
        self.initial_std = config.initial_std
        self.hook_in, self.hook_out = HookPoint(), HookPoint()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        draw_parameters(self, self.initial_std, generator)

    def forward(self, normalised: Resid) -> Logits:
        normalised = tap(self.hook_in, normalised)
        return tap(self.hook_out, F.linear(normalised, self.W_U.T, self.b_U))


class TiedUnembed(nn.Module):
    """Unembed with the transposed embedding: one parameter for both."""

    def __init__(self, config: ModelConfig, embed: Embed) -> None:
        super().__init__()
        self.b_U = nn.Parameter(torch.zeros(config.d_vocab))
        self.tie(embed)
        self.hook_in, self.hook_out = HookPoint(), HookPoint()
        self.register_state_dict_post_hook(write_tied_weight)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Set the bias to 0; the weight is the embedding's."""
        draw_parameters(self, 0.0, generator)

    def tie(self, embed: Embed) -> None:
        """Share the parameter of an embedding; called again when the model gets another one."""
        self._shared = (embed,)  # in a tuple, so that it is not registered a second time

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """The embedding, transposed."""
        return self._shared[0].W_E.T

    def forward(self, normalised: Resid) -> Logits:
        normalised = tap(self.hook_in, normalised)
        return tap(self.hook_out, F.linear(normalised, self._shared[0].W_E, self.b_U))


def write_tied_weight(
    module: TiedUnembed, state: dict[str, Tensor], prefix: str, _: dict[str, Any]
) -> None:
    """Add W_U to a state dict, as an untied model has it."""
    state[prefix + "W_U"] = module.W_U.detach().clone()


def check_tied_weight(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Remove W_U from a loaded state dict after checking that it equals W_E transposed."""
    W_U, W_E = state.pop(prefix + "unembed.W_U", None), state.get(prefix + "embed.W_E")
    if W_U is not None and W_E is not None and not torch.equal(W_U, W_E.T):
        raise ValueError(
            "unembed.W_U must be embed.W_E transposed in a model with tied embeddings, got another "
            "matrix; load these weights with tie_word_embeddings=False"
        )
