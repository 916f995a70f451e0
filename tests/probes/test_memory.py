"""What may be asked of long sequences: no probe builds a tensor as large as a matrix of cells."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from probes.attention.entropy import entropy_profile
from probes.attention.heads import score_heads
from probes.attention.offsets import offset_spectrum
from probes.attention.peaks import head_peaks
from probes.reading.observed_model import observe_layers, probe_input
from probes.writing.values import head_values

N_POS = 2_048
CELLS = N_POS * N_POS


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that any operator's result held."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor):
                held = t.untyped_storage().nbytes() // t.element_size()
                self.numbers = max(self.numbers, held)
        return out


@pytest.fixture(scope="module")
def long_input():
    from lab.config import ModelConfig
    from lab.hooked_gpt import HookedGPT

    sizes = {"n_layers": 1, "n_heads": 2, "d_model": 8, "d_vocab": N_POS, "n_ctx": N_POS}
    model = HookedGPT(ModelConfig(**sizes, attn_only=True))
    tokens = torch.randperm(N_POS, generator=torch.Generator().manual_seed(0))
    tokens[N_POS // 2 :] = tokens[: N_POS // 2]
    return model, tokens.unsqueeze(0)


@pytest.mark.parametrize("pad", [0, 100])
def test_no_matrix_is_built_of_a_long_sequence(long_input, pad, monkeypatch):
    monkeypatch.setattr("lab.attention.MASK_CELLS", CELLS // 4)
    model, tokens = long_input
    mask = None
    if pad:
        mask = torch.ones_like(tokens)
        mask[:, :pad] = 0
    with LargestTensor() as largest:
        score_heads(model, tokens, attention_mask=mask)
        offset_spectrum(model, tokens, 40, attention_mask=mask)
        head_values(model, tokens, attention_mask=mask)
        entropy_profile(model, tokens, attention_mask=mask)
    assert largest.numbers < CELLS / 2


def test_what_needs_whole_rows_takes_a_few_at_a_time(long_input, monkeypatch):
    model, tokens = long_input
    monkeypatch.setattr("lab.attention_reads.SCORES_AT_ONCE", 100 * N_POS)
    with LargestTensor() as largest:
        head_peaks(model, tokens[:, :1_500], ["previous"])
    assert largest.numbers <= 2 * 100 * N_POS


def test_reads_are_not_kept_beyond_their_layer(small_model, repeating_batch):
    """The observer's argument is the only place that holds them."""
    import weakref

    held = []
    x = probe_input(small_model, repeating_batch)

    def observe(layer, reads):
        assert all(ref() is None for ref in held)
        held.append(weakref.ref(reads))

    observe_layers(small_model, x.tokens, observe)
    assert len(held) == 2
