"""What heads write: closed forms, a sink that says nothing, silent heads, padding, pruned heads."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from probes.labels.rules import CUTS, Cuts
from probes.writing.values import head_values


@pytest.fixture
def even_model(build_model):
    """One layer of three heads that spread evenly, each with another value to write."""
    model = build_model(n_layers=1, normalization_type=None)
    with torch.no_grad():
        model.blocks[0].attn.W_Q.zero_()
    return model


def test_closed_form_of_even_heads(even_model):
    """Each z is the mean of the values so far; key 0 has 1 / (q + 1) of the attention."""
    tokens = torch.tensor([[0, 2, 3, 4]])
    _, cache = even_model.run_with_cache(tokens)
    v, W_O = cache["v", 0][0], even_model.blocks[0].attn.W_O
    frame = head_values(even_model, tokens)
    np.testing.assert_allclose(frame["sink_mass"], np.mean([1 / 2, 1 / 3, 1 / 4]))
    for head in range(3):
        written = [v[: q + 1, head].mean(dim=0) @ W_O[head] for q in (1, 2, 3)]
        from_sink = [v[0, head] @ W_O[head] / (q + 1) for q in (1, 2, 3)]
        norm, sink = (np.mean([w.norm().item() for w in some]) for some in (written, from_sink))
        assert frame["output_norm"][head] == pytest.approx(norm, abs=1e-12)
        assert frame["sink_value_share"][head] == pytest.approx(sink / norm, abs=1e-12)
    np.testing.assert_allclose(
        frame["layer_share"], frame["output_norm"] / frame["output_norm"].median()
    )


def test_sink_without_a_value_gives_nothing(even_model):
    """Half of the attention of row 1 rests where there is nothing to read."""
    with torch.no_grad():
        even_model.blocks[0].attn.b_V.zero_()
        even_model.embed.W_E[0] = -even_model.pos_embed.W_pos[0]
    frame = head_values(even_model, torch.tensor([[0, 3]]))
    np.testing.assert_allclose(frame["sink_mass"], 0.5)
    np.testing.assert_allclose(frame["sink_value_share"], 0.0, atol=1e-12)
    assert not frame["silent"].any()


def test_head_that_writes_next_to_nothing_is_silent(even_model):
    tokens = torch.tensor([[0, 2, 3, 4]])
    before = head_values(even_model, tokens)
    with torch.no_grad():
        even_model.blocks[0].attn.W_O[1] *= 1e-3
    frame = head_values(even_model, tokens)
    assert frame["silent"].tolist() == [False, True, False]
    assert frame["output_norm"][1] == pytest.approx(1e-3 * before["output_norm"][1])
    with torch.no_grad():
        even_model.blocks[0].attn.W_O.zero_()
    nothing = head_values(even_model, tokens)
    assert nothing["silent"].all()
    assert nothing[["sink_value_share", "layer_share"]].isna().all(axis=None)
    assert (nothing["output_norm"] == 0).all()


def test_silence_has_one_cut(even_model, monkeypatch):
    """That of labels."""
    monkeypatch.setattr("probes.writing.values.CUTS", Cuts(silent_share=1.0))
    frame = head_values(even_model, torch.tensor([[0, 2, 3, 4]]))
    assert frame["silent"].tolist() == (frame["layer_share"] < 1.0).tolist()
    assert frame["silent"].any()
    assert Cuts().silent_share == CUTS.silent_share == 0.01


def test_values_that_the_output_hardly_passes_are_not_lost_in_rounding(build_model):
    """In float32, z W_O W_O^T z would leave a tenth of the true norm's digits."""
    model = build_model(n_layers=1)
    with torch.no_grad():
        model.blocks[0].attn.W_O[:, 0] *= 1e-5
        model.blocks[0].attn.W_V[:, :, 1:] *= 1e-5
        model.blocks[0].attn.b_V[:, 1:] = 0.0
    tokens = torch.tensor([[0, 2, 3, 4, 5]])
    exact = head_values(model, tokens)
    rough = head_values(model.float(), tokens)
    np.testing.assert_allclose(rough["output_norm"], exact["output_norm"], rtol=1e-4)


def test_padding_changes_nothing(build_model, repeating_batch):
    model = build_model()
    tokens = repeating_batch.tokens[:, :7]
    alone = head_values(model, tokens)
    for left, right in ((2, 0), (0, 3), (1, 1)):
        padded = F.pad(tokens, (left, right), value=3)
        mask = F.pad(torch.ones_like(tokens), (left, right))
        frame = head_values(model, padded, attention_mask=mask)
        pd.testing.assert_frame_equal(frame, alone, check_exact=False, rtol=0, atol=1e-10)


def test_one_token_has_nothing_to_compare(small_model):
    frame = head_values(small_model, torch.tensor([[0], [2]]))
    assert frame[["sink_mass", "output_norm", "sink_value_share"]].isna().all(axis=None)
    assert not frame["silent"].any()
    assert (frame["n_rows"] == 0).all()


def test_pruned_heads_keep_their_numbers_and_names(build_model, repeating_batch):
    from probes.pruning.removing import prune_heads

    model = build_model(n_heads=4, n_key_value_heads=2, n_layers=1)
    pruned = prune_heads(model, [(0, 0), (0, 1), (0, 2)])
    whole, left = head_values(model, repeating_batch), head_values(pruned, repeating_batch)
    assert left["head"].tolist() == [3]
    assert left["output_norm"].item() == pytest.approx(whole["output_norm"][3], abs=1e-12)
