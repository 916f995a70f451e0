"""Passes that continue a kept one, against forward with the gates of the same edit."""

import pytest
import torch

from lab.config import ModelConfig
from lab.gates import GateTensors
from lab.hooked_gpt import HookedGPT
from lab.partial_pass import can_be_entered, edited_rows, whole_pass

KINDS = {
    "plain": {},
    "grouped, rotary, gated": {
        "n_heads": 4,
        "n_key_value_heads": 2,
        "positional_embedding_type": "rotary",
        "rotary_adjacent_pairs": True,
        "normalization_type": "RMS",
        "gated_mlp": True,
        "act_fn": "silu",
    },
    "parallel": {"parallel_attn_mlp": True},
    "attn_only, both ways": {"attn_only": True, "attention_dir": "bidirectional"},
    "no norms": {"normalization_type": None, "positional_embedding_type": "none"},
}
TOKENS = torch.randint(7, (3, 8), generator=torch.Generator().manual_seed(2))
REAL = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8, [1, 1, 1, 1, 1, 1, 0, 0]]).bool()


def build(**changes: object) -> HookedGPT:
    sizes = {"n_layers": 3, "n_heads": 3, "d_model": 12, "d_vocab": 7, "n_ctx": 8, "d_head": 4}
    return HookedGPT(ModelConfig(**{**sizes, "initializer_range": 0.6, **changes})).double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [False, True])
def test_equal_to_forward_with_gates(kind, padded):
    """Head 1 of each layer in turn, with head 2 of the last layer gated as well."""
    model, first = build(**KINDS[kind]), 3
    real = REAL if padded else None
    whole = whole_pass(model, TOKENS, real, first)
    seen = REAL[:, first:] if padded else torch.ones(3, 8 - first, dtype=torch.bool)
    plain = model.forward(TOKENS, stop_at_layer=3, attention_mask=real)[:, first:]
    torch.testing.assert_close(whole.rows[seen], plain[seen], atol=1e-11, rtol=1e-12)
    g = torch.ones(3, 3, 1, model.config.n_heads)
    g[2, :, :, 2] = 0.25
    for layer in range(3):
        attn, half = model.blocks[layer].attn, whole.layers[layer]
        edit = -half.z[:, :, 1] @ attn.W_O[1]
        if layer == 2:
            edit = edit - 0.75 * half.z[:, :, 2] @ attn.W_O[2]
        edits = torch.stack([torch.zeros_like(edit), edit])
        gates = GateTensors(g=g.repeat(1, 2, 1, 1))
        rows = edited_rows(whole, layer, edits, None if layer == 2 else gates)
        both = g.clone()
        both[layer, :, :, 1] = 0.0
        for run, own in enumerate((g, both) if layer < 2 else (None, both)):
            wanted = model.forward(
                TOKENS,
                gates=None if own is None else GateTensors(g=own),
                stop_at_layer=3,
                attention_mask=real,
            )[:, first:]
            torch.testing.assert_close(rows[run][seen], wanted[seen], atol=1e-11, rtol=1e-12)


def test_hooked_and_foreign_models_cannot_be_entered():
    model = build()
    assert can_be_entered(model)
    with model.hooks(fwd_hooks=[("blocks.1.mlp.hook_post", lambda x, hook: x)]):
        assert not can_be_entered(model)
    assert can_be_entered(model)

    class Twice(HookedGPT):
        def forward(self, *args, **kwargs):
            return 2 * super().forward(*args, **kwargs)

    assert not can_be_entered(Twice(model.config))
    model.blocks[1] = torch.nn.Identity()
    assert not can_be_entered(model)


def test_too_long_sequences_and_foreign_ids_are_refused():
    model = build()
    with pytest.raises(ValueError, match="1 to n_ctx = 8 tokens, got 9"):
        whole_pass(model, torch.zeros(1, 9, dtype=torch.long))
    with pytest.raises(ValueError, match="token ids must be from 0 to 6, got 7 to 7"):
        whole_pass(model, torch.full((1, 2), 7))
