"""Small models of every architecture that a ModelConfig can describe, with weights that matter."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jaxtyping
import pytest
import torch
from torch import Tensor

if TYPE_CHECKING:
    from lab.hooked_gpt import HookedGPT

SIZES = {"n_layers": 2, "n_heads": 6, "d_model": 24, "d_head": 6, "d_vocab": 13, "n_ctx": 16}
LLAMA = {
    "positional_embedding_type": "rotary",
    "normalization_type": "RMS",
    "gated_mlp": True,
    "act_fn": "silu",
}
ROTARY_IN_PART = {
    "positional_embedding_type": "rotary",
    "rotary_dim": 4,
    "parallel_attn_mlp": True,
}
ARCHITECTURES: dict[str, dict[str, object]] = {
    "gpt2": {},
    "gpt2 tied": {"tie_word_embeddings": True},
    "sinusoidal": {"positional_embedding_type": "sinusoidal"},
    "no positions": {"positional_embedding_type": "none"},
    "llama": LLAMA,
    "llama, 3 heads a key": {**LLAMA, "n_key_value_heads": 2},
    "one key head": {**LLAMA, "n_key_value_heads": 1, "tie_word_embeddings": True},
    "neox": ROTARY_IN_PART,
    "gpt-j": {**ROTARY_IN_PART, "rotary_adjacent_pairs": True},
    "attention only": {"attn_only": True},
    "no norm": {"normalization_type": None},
    "bidirectional": {"attention_dir": "bidirectional"},
    "other outputs": {"d_vocab_out": 5},
    "solu": {"act_fn": "solu"},
    "solu and norm": {"act_fn": "solu_ln"},
}
FOR_TOOLS = ("gpt2", "llama", "llama, 3 heads a key", "neox", "attention only", "bidirectional")
"""LN and RMS, learned and rotary positions, grouped queries, parallel blocks, no MLPs, no mask."""


@pytest.fixture
def build() -> Callable[..., "HookedGPT"]:
    """A function that builds an architecture in float64, with changes to its config."""

    def built(name: str, **changes: object) -> "HookedGPT":
        from lab.config import ModelConfig
        from lab.hooked_gpt import HookedGPT

        # Shapes are checked when models run, and building them takes half of a small test.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
            values = {**SIZES, "initializer_range": 0.3, "seed": 1, **ARCHITECTURES[name]}
            model = HookedGPT(ModelConfig(**{**values, **changes})).double().eval()
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if ".b" in key or key.endswith(".w"):
                    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter.add_(0.3 * noise)
        return model

    return built


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, build: Callable[..., "HookedGPT"]) -> "HookedGPT":
    """One model of every architecture."""
    return build(request.param)


@pytest.fixture(params=ARCHITECTURES)
def live_model(request: pytest.FixtureRequest, build: Callable[..., "HookedGPT"]) -> "HookedGPT":
    """One model of every architecture: of one layer, which has every kind of hook, but for two."""
    return build(request.param, n_layers=2 if request.param in FOR_TOOLS[:3:2] else 1)


@pytest.fixture(params=FOR_TOOLS)
def tool_model(request: pytest.FixtureRequest, build: Callable[..., "HookedGPT"]) -> "HookedGPT":
    """A smaller model of those architectures that TransformerLens's tools run on, one by one."""
    return small(build, request.param)


def small(build: Callable[..., "HookedGPT"], name: str) -> "HookedGPT":
    """Build an architecture with three heads."""
    heads = {"n_heads": 3} | ({"n_key_value_heads": 1} if "3 heads" in name else {})
    return build(name, **heads, d_model=12, d_head=4, d_mlp=16)


WIDE = (
    "gpt2",
    "llama, 3 heads a key",
    "attention only",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "neox", "bidirectional")),
)


@pytest.fixture(params=WIDE)
def swept_model(request: pytest.FixtureRequest, build: Callable[..., "HookedGPT"]) -> "HookedGPT":
    """The models of tool_model, for tools of hundreds of runs: every second one is slow."""
    return small(build, request.param)


@pytest.fixture
def tokens() -> Tensor:
    """Three sequences of eight ids."""
    return torch.randint(0, 13, (3, 8), generator=torch.Generator().manual_seed(5))
