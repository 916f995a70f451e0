"""Models of TransformerLens as probes meet them: hooks that come and go, and what is refused."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from probes.attention.entropy import entropy_profile
from probes.attention.heads import score_heads
from probes.attention.maps import attention_map
from probes.attention.offsets import offset_spectrum
from probes.reading import bridge as bridge_module
from probes.reading.bridge import observe_patterns
from probes.reading.observed_model import special_ids_of, weights_of
from probes.writing.values import head_values


class Mixer(nn.Module):
    """One layer of a home-made model: its patterns do not depend on the tokens."""

    def __init__(self, heads: int, dropout: float) -> None:
        super().__init__()
        self.hook_pattern, self.drop = HookPoint(), nn.Dropout(dropout)
        self.heads = heads

    def forward(self, n_pos: int) -> torch.Tensor:
        scores = torch.arange(n_pos).float().expand(2, self.heads, n_pos, n_pos)
        mask = torch.ones(n_pos, n_pos).triu(1).bool()
        return self.hook_pattern(self.drop(scores.masked_fill(mask, -np.inf).softmax(-1)))


class HomeMade(HookedRootModule):
    """A model with HookedTransformer's names and nothing else that probes could lean on."""

    def __init__(self, layers: int = 2, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        blocks = [nn.ModuleDict({"attn": Mixer(heads, dropout)}) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.setup()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            block["attn"](tokens.shape[1])
        return tokens


TOKENS = torch.tensor([[0, 2, 3, 4], [0, 4, 4, 3]])


def test_any_hooked_root_module_with_patterns_can_be_read():
    model = HomeMade()
    frame = score_heads(model, TOKENS)
    assert frame[["layer", "head"]].drop_duplicates().to_numpy().tolist() == [
        [0, 0],
        [0, 1],
        [1, 0],
        [1, 1],
    ]
    e = np.exp(1.0)
    current = [1 / sum(e**-back for back in range(q + 1)) for q in (1, 2, 3)]
    scores = frame[frame["probe"] == "current"]["score"]
    np.testing.assert_allclose(scores, np.mean(current), atol=1e-6)
    assert entropy_profile(model, TOKENS)["entropy"].notna().all()
    assert weights_of(model) is None


def test_nobody_is_left_listening(build_model):
    theirs = build_model().float().to_boot_native()
    seen = []
    theirs.add_hook("blocks.0.attn.hook_pattern", lambda x, hook: seen.append(1))
    score_heads(theirs, TOKENS)
    assert seen == [1]  # hooks that stood there stay, and act
    theirs(TOKENS)
    assert seen == [1, 1]
    own = [hook for hook in theirs.hook_dict.values() if hook.fwd_hooks]
    assert len(own) == 1


def test_edited_pattern_is_read_as_it_was_edited(build_model):
    theirs = build_model().float().to_boot_native()
    even = torch.ones(4, 4).tril() / torch.arange(1, 5).unsqueeze(1)
    theirs.add_hook("blocks.1.attn.hook_pattern", lambda x, hook: even.expand_as(x).clone())
    frame = score_heads(theirs, TOKENS)
    np.testing.assert_allclose(frame[frame["layer"] == 1]["kappa"].dropna(), 0.0, atol=1e-6)
    assert frame[frame["layer"] == 0]["kappa"].abs().max() > 0.05


def test_long_sequences_go_through_a_few_at_a_time(build_model, monkeypatch):
    theirs = build_model().float().to_boot_native()
    whole = score_heads(theirs, TOKENS)
    batches = []
    run = theirs.run_with_hooks
    monkeypatch.setattr(bridge_module, "PATTERN_NUMBERS", 1)
    monkeypatch.setattr(
        theirs, "run_with_hooks", lambda x, **kw: (batches.append(len(x)), run(x, **kw))
    )
    pieces = score_heads(theirs, TOKENS)
    assert batches == [1, 1]
    np.testing.assert_allclose(pieces["score"], whole["score"], atol=1e-6)


def test_maps_and_names_of_a_bridge(build_model):
    ours = build_model().float()
    theirs = ours.to_boot_native()
    found = [attention_map(model, TOKENS, layer=1, head=2) for model in (ours, theirs)]
    np.testing.assert_allclose(found[0]["probability"], found[1]["probability"], atol=1e-6)
    theirs.tokenizer = SimpleNamespace(bos_token_id=5, eos_token_id=4, pad_token_id=None)
    assert special_ids_of(theirs, TOKENS) == (4, 5)


def test_what_says_nothing_of_attention_is_refused():
    no_patterns = HomeMade(layers=0)
    with pytest.raises(ValueError, match=r"must have attention patterns .* got a HomeMade without"):
        score_heads(no_patterns, TOKENS)
    with pytest.raises(ValueError, match="model must be a HookedGPT or one of TransformerLens, go"):
        entropy_profile(nn.Linear(2, 2), TOKENS)


def test_pattern_that_never_shows_is_missed():
    model = HomeMade()
    model.blocks[1]["attn"].forward = lambda n_pos: None
    with pytest.raises(ValueError, match=r"layers \[0, 1\] must be shown .* got those of \[0\]; l"):
        score_heads(model, TOKENS)


def test_dropout_is_no_attention():
    model = HomeMade(dropout=0.1)
    with pytest.raises(ValueError, match=r"in evaluation mode, got .* blocks.0.attn.drop; call mo"):
        score_heads(model, TOKENS)
    assert score_heads(model.eval(), TOKENS)["score"].notna().any()


def test_padding_needs_a_mask_that_the_model_takes():
    with pytest.raises(ValueError, match="forward of HomeMade must take an attention_mask to rea"):
        score_heads(HomeMade(), TOKENS, attention_mask=torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]))


def test_values_must_be_shown_to_be_weighed(build_model):
    model = HomeMade()
    model.blocks[0].attn = model.blocks[0]["attn"]
    assert offset_spectrum(model, TOKENS)["mass"].notna().all()
    with pytest.raises(ValueError, match="W_O"):
        head_values(model, TOKENS)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(1, 17, dtype=torch.long), "1 to n_ctx = 16 tokens, got 17"),
        (torch.tensor([[0, 6]]), "token ids must be from 0 to 5, got 0 to 6"),
        (torch.tensor([[0, -1]]), "token ids must be from 0 to 5, got -1 to 0"),
    ],
)
def test_what_the_model_cannot_read_is_told_in_one_line(build_model, tokens, message):
    ours = build_model().float()
    with pytest.raises(ValueError, match=message):
        score_heads(ours.to_boot_native(), tokens)


@pytest.mark.parametrize("name", ["sliding_window", "window_size"])
def test_window_of_attention_that_hides_keys_is_refused(name):
    model = HomeMade()
    model.cfg = SimpleNamespace(**{name: 4})
    assert score_heads(model, TOKENS)["chance"].notna().any()
    with pytest.raises(ValueError, match=f"must have at most {name} = 4 tokens, got 5: later rows"):
        score_heads(model, torch.zeros(1, 5, dtype=torch.long))


def test_flat_values_are_split_into_heads(small_model):
    model = SimpleNamespace(cfg=SimpleNamespace(d_head=4))
    flat = torch.arange(24.0).view(1, 2, 12)
    heads = bridge_module.split_heads(model, flat)
    assert heads.shape == (1, 2, 3, 4)
    assert heads[0, 1, 2].tolist() == [20, 21, 22, 23]
    with pytest.raises(ValueError, match="d_head of the model's cfg must divide the 12 numbers"):
        bridge_module.split_heads(SimpleNamespace(cfg=SimpleNamespace(d_head=5)), flat)


def test_observed_without_a_warning(build_model):
    theirs = build_model().float().to_boot_native()
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        observe_patterns(theirs, TOKENS, lambda layer, reads: shown.append((layer, reads.n_heads)))
    assert shown == [(0, 3), (1, 3)]
