"""Copying: heads that copy, that do the opposite and that do nothing; the small matrix; loops."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from probes.tables import json_rows
from probes.writing.copying import copying_scores, sample_tokens

SAMPLE = torch.tensor([[0, 2, 5, 3, 7], [0, 6, 1, 4, 8]])


def one_hot_model(sign: float, **changes: object) -> HookedGPT:
    """One head that looks at its own token and writes it, times a number; codes are one-hot."""
    sizes = {"n_layers": 1, "n_heads": 1, "d_model": 10, "d_vocab": 10, "n_ctx": 8}
    options = {"normalization_type": None, "attn_only": True, "positional_embedding_type": "none"}
    model = HookedGPT(ModelConfig(**{**sizes, **options, **changes})).double()
    with torch.no_grad():
        for weight in (model.embed.W_E, model.unembed.W_U):
            weight.copy_(torch.eye(*weight.shape))
        attn = model.blocks[0].attn
        attn.W_V.copy_(torch.eye(10).expand_as(attn.W_V))
        attn.W_O.copy_(sign * torch.eye(10).expand_as(attn.W_O))
        attn.W_Q.copy_(400 * torch.eye(10).expand_as(attn.W_Q))
        attn.W_K.copy_(torch.eye(10).expand_as(attn.W_K))
    return model


def test_heads_that_copy_suppress_and_do_nothing():
    copies, opposite, nothing = (
        copying_scores(one_hot_model(sign), SAMPLE).iloc[0] for sign in (3.0, -3.0, 0.0)
    )
    assert copies["eigenvalue"] == pytest.approx(1.0)
    assert copies["copying"] == pytest.approx(1.0)  # what is not attended is not raised
    assert copies["top5"] == 1.0
    assert copies["top5_chance"] == 0.5
    assert opposite["eigenvalue"] == pytest.approx(-1.0)
    assert opposite["copying"] == pytest.approx(-1.0)
    assert opposite["top5"] == 0.0
    assert math.isnan(nothing["eigenvalue"])
    assert math.isnan(nothing["copying"])
    assert nothing["top5"] == 0.0  # all logits tie: the token is not among the likeliest


def test_attention_decides_how_much_is_copied():
    """A head that raises two tokens alike and looks at one: half of what it raises is looked at."""
    model = one_hot_model(1.0)
    with torch.no_grad():
        attn = model.blocks[0].attn
        swap = torch.eye(10)
        swap[[2, 5]] = swap[[5, 2]]
        attn.W_O[0] = torch.eye(10) + swap
    frame = copying_scores(model, torch.tensor([[0, 2, 5]]))
    assert frame["copying"].item() == pytest.approx(2 * 0.5 - 1)


def test_even_head_that_copies_perfectly_has_a_low_score():
    """Of all that row q could look at it looks at one in q: 2 / q - 1, rows without the first."""
    model = one_hot_model(1.0)
    with torch.no_grad():
        model.blocks[0].attn.W_Q.zero_()
    frame = copying_scores(model, SAMPLE)
    rest = [q / (q + 1) for q in (1, 2, 3, 4)]
    exact = np.average([2 / q - 1 for q in (1, 2, 3, 4)], weights=rest)
    assert frame["copying"].item() == pytest.approx(exact)
    assert frame["eigenvalue"].item() == pytest.approx(1.0)
    long = np.arange(1, 26)
    assert np.average(2 / long - 1, weights=long / (long + 1)) == pytest.approx(-0.74, abs=0.005)


def folded_product(model, layer, head):
    """The whole d_vocab x d_vocab matrix, from a model whose norms are folded in."""
    folded = model.fold_ln()
    kv = model.config.kv_head(head)
    attn = folded.blocks[layer].attn
    return folded.W_E @ attn.W_V[kv] @ attn.W_O[head] @ folded.W_U


@pytest.mark.parametrize(
    "design",
    [
        {},
        {"normalization_type": "RMS", "positional_embedding_type": "rotary"},
        {"n_heads": 4, "n_key_value_heads": 2},
        {"parallel_attn_mlp": True},
        {"tie_word_embeddings": True},
        {"d_head": 14},
    ],
    ids=str,
)
def test_small_matrix_has_the_eigenvalues_of_the_large_one(build_model, design):
    model = build_model(d_vocab=11, **design)
    with torch.no_grad():
        for block in model.blocks:
            block.ln1.w.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(1))
        model.ln_final.w.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(2))
    for row in json_rows(copying_scores(model, SAMPLE % 11)):
        values = torch.linalg.eigvals(folded_product(model, row["layer"], row["head"]))
        exact = (values.sum().real / values.abs().sum()).item()
        # The large matrix has eigenvalues of 0, found as small ones of either sign.
        assert row["eigenvalue"] == pytest.approx(exact, abs=1e-5)


def test_equal_to_loops_over_rows_and_tokens(build_model):
    model = build_model(d_vocab=11, n_heads=2, n_key_value_heads=1)
    with torch.no_grad():
        model.blocks[0].attn.b_V.normal_(generator=torch.Generator().manual_seed(0))
        model.unembed.b_U.normal_(generator=torch.Generator().manual_seed(0))
        model.ln_final.w.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(2))
    _, cache = model.run_with_cache(SAMPLE)
    W_U = model.ln_final.w.unsqueeze(1) * model.W_U
    W_U = W_U - W_U.mean(dim=0)
    for row in json_rows(copying_scores(model, SAMPLE)):
        layer, head = row["layer"], row["head"]
        total, weights = 0.0, 0.0
        for b, tokens in enumerate(SAMPLE.tolist()):
            for q in range(1, 5):
                pattern = cache["pattern", layer][b, head, q]
                result = cache["z", layer][b, q, head] @ model.blocks[layer].attn.W_O[head]
                logits = result @ W_U
                raised = F.relu(logits - logits.mean())
                left = 1 - pattern[0].item()
                attended = sum(
                    pattern[k].item() / left * raised[tokens[k]].item() for k in range(1, q + 1)
                )
                everything = sum(raised[t].item() for t in tokens[1:])
                if everything > 0 and left >= 1e-3:
                    total += left * (2 * attended / everything - 1)
                    weights += left
        assert row["copying"] == pytest.approx(total / weights, abs=1e-10)
        assert row["top5"] == pytest.approx(top_share(model, layer, head), abs=1e-12)


def top_share(model, layer, head):
    """Share of the sample's tokens among the five likeliest, one token at a time."""
    copied = []
    for token in SAMPLE[:, 1:].unique().tolist():
        x = model.W_E[token].view(1, 1, -1)
        block = model.blocks[0]
        x = x if layer == 0 else x + block.mlp(block.ln2(x))
        attn = model.blocks[layer].attn
        v = model.blocks[layer].ln1(x) @ attn.W_V[0] + attn.b_V[0]
        logits = model.unembed(model.ln_final(v @ attn.W_O[head]))[0, 0]
        copied.append(token in logits.topk(5).indices.tolist())
    return np.mean(copied)


def test_another_vocabulary_cannot_be_copied_into(build_model):
    model = build_model(d_vocab=11, d_vocab_out=4)
    frame = copying_scores(model, SAMPLE)
    numbers = ["eigenvalue", "copying", "top5", "top5_chance"]
    assert frame[numbers].isna().all(axis=None)
    assert len(frame) == 6


def test_sample_is_drawn_behind_one_token_and_never_repeats(build_model):
    model = build_model(d_vocab=40, n_ctx=30)
    tokens = sample_tokens(model, 4, seed=1)
    assert tokens.shape == (4, 26)
    assert all(len(set(row)) == 26 for row in tokens.tolist())
    assert torch.equal(tokens, sample_tokens(model, 4, seed=1))
    assert not torch.equal(tokens, sample_tokens(model, 4, seed=2))
    short = sample_tokens(build_model(d_vocab=5, n_ctx=3), 2, seed=0)
    assert short.shape == (2, 3)
    frame = copying_scores(model, seed=1, n_sequences=4)
    assert frame[["n_sequences", "n_tokens"]].drop_duplicates().to_numpy().tolist() == [[4, 100]]
    assert frame["eigenvalue"].between(-1, 1).all()
    assert frame["copying"].between(-1, 1).all()


def test_pruned_heads_keep_their_numbers_and_names(build_model):
    from probes.pruning.removing import prune_heads

    model = build_model(d_vocab=11, n_heads=4, n_key_value_heads=2)
    pruned = prune_heads(model, [(1, 0), (1, 1), (1, 3), (0, 0)], mode="zero")
    with torch.no_grad():  # what layer 1 reads changes; what its weights say does not
        whole, left = (json_rows(copying_scores(each, SAMPLE)) for each in (model, pruned))
    assert [(row["layer"], row["head"]) for row in left] == [(0, 1), (0, 2), (0, 3), (1, 2)]
    for row in left:
        before = whole[4 * row["layer"] + row["head"]]
        assert row["eigenvalue"] == pytest.approx(before["eigenvalue"])
        assert row["top5"] == before["top5"]


@pytest.mark.parametrize("empty", [(0,), (1,), (0, 1)], ids=str)
def test_layer_without_heads_has_no_rows(build_model, empty):
    from probes.pruning.removing import prune_heads

    model = build_model(d_vocab=11, n_heads=2)
    pruned = prune_heads(model, [(layer, head) for layer in empty for head in (0, 1)])
    frame = copying_scores(pruned, SAMPLE)
    kept = [(layer, head) for layer in (0, 1) if layer not in empty for head in (0, 1)]
    assert list(zip(frame["layer"], frame["head"], strict=True)) == kept
    assert frame["top5"].between(0.0, 1.0).all()
