"""Small models and batches that the tests of probes share."""

import pytest
import torch

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.reading.pattern_reads import PatternReads


def build(**changes: object) -> HookedGPT:
    """Return a small random model in float64 whose heads are far from uniform."""
    sizes = {"n_layers": 2, "n_heads": 3, "d_model": 12, "d_vocab": 6, "n_ctx": 16}
    config = ModelConfig(**{**sizes, "initializer_range": 0.7, "seed": 3, **changes})
    return HookedGPT(config).double()


@pytest.fixture(scope="session")
def small_model() -> HookedGPT:
    return build()


@pytest.fixture
def build_model():
    return build


ARCHITECTURES: dict[str, dict[str, object]] = {
    "LN": {},
    "RMS, rotary, shared keys": {
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
        "gated_mlp": True,
        "n_key_value_heads": 1,
    },
    "attention only": {"attn_only": True},
    "parallel": {"parallel_attn_mlp": True, "positional_embedding_type": "rotary"},
    "no norm": {"normalization_type": None, "initializer_range": 0.3},
}


@pytest.fixture(scope="session", params=ARCHITECTURES)
def any_model(request: pytest.FixtureRequest) -> HookedGPT:
    """A small model of each architecture in which every bias and every norm's weight matters."""
    model = build(**ARCHITECTURES[request.param]).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".b" in key or key.endswith(".w"):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(0.3 * noise)
    return model


@pytest.fixture(scope="session")
def repeating_batch() -> Batch:
    """Five reversal sequences over four letters, so that letters repeat and rows differ."""
    return get_task("reversal", length=6, n_symbols=4).sample(5, seed=1, split="test")


@pytest.fixture(scope="session")
def distinct_batch() -> Batch:
    """The reversal of eight different letters: T = 18."""
    task = get_task("reversal", length=8)
    return task.sequences(torch.arange(2, 10).unsqueeze(0))


class FixedPatterns:
    """A stand-in for a model: one layer whose heads have given patterns, whatever the tokens."""

    def __init__(self, patterns: list[torch.Tensor]) -> None:
        self.pattern = torch.stack(patterns)

    def forward(self, input, return_type=None, *, observe=None):
        if observe is not None:
            observe(0, PatternReads(self.pattern.expand(len(input), -1, -1, -1)))


@pytest.fixture
def fixed_patterns():
    """The stand-in: pass it one matrix a head."""
    return FixedPatterns
