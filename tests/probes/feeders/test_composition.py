"""Composition scores against the whole matrices, TransformerLens, and heads that are known."""

import math

import numpy as np
import pytest
import torch

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from probes.feeders.composition import composition_scores, random_score
from probes.planted import PlantedHead, plant
from probes.pruning.removing import prune_heads
from probes.schemas.cause import COMPOSITION

SIZES = {"n_layers": 3, "n_heads": 4, "d_model": 12, "d_head": 4, "d_vocab": 7, "n_ctx": 8}
LLAMA = {"positional_embedding_type": "rotary", "normalization_type": "RMS", "gated_mlp": True}
ARCHITECTURES = {
    "LN": {},
    "two heads a key head": {**LLAMA, "act_fn": "silu", "n_key_value_heads": 2},
    "attention only": {"attn_only": True, "normalization_type": None},
}


def make_model(**changes: object) -> HookedGPT:
    """A random model in float64 whose norms scale."""
    config = ModelConfig(**{**SIZES, "initializer_range": 0.4, "seed": 5, **changes})
    model = HookedGPT(config).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("ln1.w", "ln1.b")):
                parameter.normal_(mean=1.0, std=0.5, generator=generator)
    return model


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_equal_to_the_tool_on_a_model_with_folded_norms(changes):
    """TransformerLens's scores, in the whole d_model x d_model matrices, norms folded in."""
    model = make_model(**changes)
    frame = composition_scores(model)
    assert frame.columns.tolist() == COMPOSITION.names
    assert len(frame) == 3 * (4 * 4 * 3)
    scores = {kind: model.fold_ln().all_composition_scores(kind).scores for kind in "QKV"}
    for row in frame.itertuples():
        exact = scores[row.kind][row.from_layer, row.from_head, row.layer, row.head].item()
        assert row.score == pytest.approx(exact, abs=1e-12)
        assert row.excess == row.score - row.chance


def test_key_heads_of_a_pruned_model_are_those_that_its_heads_read():
    """Groups of 2 and 1 heads, original ids, and a layer without heads."""
    model = make_model(**ARCHITECTURES["two heads a key head"])
    gone = [(0, 0), *((1, head) for head in range(4)), (2, 3)]
    pruned = composition_scores(prune_heads(model, gone))
    whole = composition_scores(model)
    names = ["layer", "head", "from_layer", "from_head", "kind"]
    assert len(pruned) == 3 * 3 * 3
    both = pruned.merge(whole, on=names, suffixes=("", "_whole"))
    assert len(both) == len(pruned)
    np.testing.assert_allclose(both["score"], both["score_whole"], atol=1e-12)


def test_an_induction_head_reads_its_previous_token_head_by_its_keys():
    before = PlantedHead(kind="previous", beta=20.0, writes="tokens")
    after = PlantedHead(kind="induction", beta=20.0, writes="copy")
    idle = PlantedHead(kind="uniform")
    planted = plant([[idle, before], [after, idle]], norm="LN", rotate=2)
    frame = composition_scores(planted.model, readers=[(1, 0)])
    best = frame.sort_values("excess").iloc[-1]
    assert (best["kind"], best["from_layer"], best["from_head"]) == ("K", 0, 1)
    keys = frame[(frame["kind"] == "K") & (frame["from_head"] == 0)]
    assert keys["score"].item() < 0.1 * best["score"]


def test_chosen_heads_are_the_same_rows():
    model = make_model()
    whole = composition_scores(model)
    some = composition_scores(model, ["V"], readers=[(2, 3), (1, 0)], writers=[(0, 2), (1, 1)])
    assert some[["layer", "head", "from_layer", "from_head"]].to_numpy().tolist() == [
        [1, 0, 0, 2],
        [2, 3, 0, 2],
        [2, 3, 1, 1],
    ]
    both = some.merge(whole, on=["layer", "head", "from_layer", "from_head", "kind"])
    np.testing.assert_allclose(both["score_x"], both["score_y"], atol=1e-12)


def test_random_heads_score_what_is_subtracted():
    """The mean square of the score of random heads is 1 / d_model, whatever their width."""
    for width, d_model in ((1, 9), (4, 32), (64, 96)):
        chance = random_score(width, d_model, width)
        assert 0.75 / math.sqrt(d_model) < chance < 1.02 / math.sqrt(d_model)
    frame = composition_scores(make_model(d_model=64, d_head=16, normalization_type=None))
    assert abs(frame["excess"].mean()) < 0.003
    assert random_score(16, 64, 16) == frame["chance"].iloc[0]


def test_a_head_that_writes_nothing_has_no_score():
    model = make_model()
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] = 0.0
    frame = composition_scores(model)
    silent = frame[(frame["from_layer"] == 0) & (frame["from_head"] == 1)]
    assert silent["score"].isna().all()
    assert frame["score"].notna().sum() == len(frame) - len(silent)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"kinds": ["QK"]}, "unknown composition 'QK'; choose from K, Q, V"),
        ({"readers": [(3, 0)]}, r"unknown reader 'L3H0'; choose from L0H0"),
        ({"writers": [(0, 4)]}, r"unknown writer 'L0H4'; choose from L0H0.*did you mean"),
        ({"writers": [0]}, r"heads must be pairs \(layer, head\), got 0 among them"),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_wrong_requests_are_refused(wanted, message):
    with pytest.raises(ValueError, match=message):
        composition_scores(make_model(), **wanted)
