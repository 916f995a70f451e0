"""Edges are slopes: the derivative of the answers' logits along what one reader sees."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from probes.borrowed.answers import Answers
from probes.borrowed.edges import edge_attribution
from probes.pruning.removing import prune_heads

CLEAN = torch.tensor([[0, 2, 3, 4], [0, 4, 5, 3]])
CORRUPT = torch.tensor([[0, 2, 5, 4], [0, 3, 2, 5]])
ASKED = Answers.after(CLEAN, torch.tensor([1, 2]), torch.tensor([4, 5]))
EPS = 1e-5

pytestmark = pytest.mark.usefixtures("as_a_user")


def score_of(frame, writer: tuple, reader: tuple) -> float:
    """Return the score of one edge of a table; ends are kind, layer and head."""
    keys = ["writer", "writer_layer", "writer_head", "reader", "reader_layer", "reader_head"]
    rows = frame
    for key, value in zip(keys, (*writer, *reader), strict=True):
        rows = rows[rows[key].isna() if value is None else (rows[key] == value).fillna(False)]
    return rows["score"].item()


def test_edges_are_slopes_of_what_one_reader_sees(build_model):
    model = build_model().eval()
    frame = edge_attribution(model, CLEAN, CORRUPT, answers=ASKED)
    _, good = model.run_with_cache(CLEAN)
    _, bad = model.run_with_cache(CORRUPT)
    heads = {
        head: (good["z", 0] - bad["z", 0])[:, :, head] @ model.W_O[0, head] for head in range(3)
    }
    changes = {
        ("embed", None, None): good["hook_embed"] - bad["hook_embed"],
        ("head", 0, 1): heads[1],
        ("mlp", 0, None): good["mlp_out", 0] - bad["mlp_out", 0],
    }
    block = model.blocks[1]

    def run(change, reader, t):
        """Return the answers' logits where one reader sees t times a change more."""
        kind, _, head = reader
        if kind in ("mlp", "logits"):
            norm = block.ln2 if kind == "mlp" else model.ln_final
            handle = norm.register_forward_pre_hook(
                lambda m, args: (args[0] + t * change, *args[1:])
            )
        else:
            stream = block.ln1(bad["resid_pre", 1] + t * change)
            weight = getattr(block.attn, f"W_{kind.upper()}")[head]

            def put(module, args, out):
                out = out.clone()
                out[:, :, head] = stream @ weight + getattr(block.attn, f"b_{kind.upper()}")[head]
                return out

            point = model.get_submodule(f"blocks.1.attn.hook_{kind}")
            handle = point.register_forward_hook(put)
        try:
            return ASKED(model(CORRUPT)).mean().item()
        finally:
            handle.remove()

    readers = [(kind, 1, 2) for kind in "qkv"] + [("mlp", 1, None), ("logits", None, None)]
    with torch.no_grad():
        for (writer, change), reader in itertools.product(changes.items(), readers):
            slope = (run(change, reader, EPS) - run(change, reader, -EPS)) / (2 * EPS)
            found = score_of(frame, writer, reader)
            assert found == pytest.approx(slope, abs=1e-6), (writer, reader)
    assert frame["score"].abs().max() > 1e-3


def test_intervals_are_over_pairs_and_equal_runs_have_no_edges(build_model):
    model = build_model().eval()
    frame = edge_attribution(model, CLEAN, CORRUPT, answers=ASKED)
    single = [
        edge_attribution(model, CLEAN[[i]], CORRUPT[[i]], answers=ASKED[i : i + 1])["score"]
        for i in range(2)
    ]
    np.testing.assert_allclose(frame["score"], np.mean(single, axis=0))
    np.testing.assert_allclose(frame["ci_low"], np.min(single, axis=0))
    np.testing.assert_allclose(frame["ci_high"], np.max(single, axis=0))
    nothing = edge_attribution(model, CLEAN, CLEAN, answers=ASKED)
    assert (nothing["score"] == 0.0).all()


def test_frozen_model_is_left_frozen_and_without_gradients(build_model):
    model = build_model().eval()
    reference = edge_attribution(model, CLEAN, CORRUPT, answers=ASKED)
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    model.requires_grad_(False)
    model.W_E.requires_grad_(True)
    with torch.no_grad():
        frame = edge_attribution(model, CLEAN, CORRUPT, answers=ASKED)
    assert frame.equals(reference)
    assert [name for name, w in model.named_parameters() if w.requires_grad] == ["embed.W_E"]
    flags = model.cfg
    assert not (flags.use_attn_result or flags.use_split_qkv_input or flags.use_hook_mlp_in)


def test_pruned_heads_keep_their_ids(build_model):
    model = build_model().eval()
    pruned = prune_heads(model, [(0, 0), (1, 1)])
    frame = edge_attribution(pruned, CLEAN, CORRUPT, answers=ASKED)
    assert set(frame.loc[frame["writer_layer"] == 0, "writer_head"].dropna()) == {1, 2}
    assert set(frame.loc[frame["reader_layer"] == 1, "reader_head"].dropna()) == {0, 2}
    with torch.no_grad():
        model.blocks[0].attn.W_O[0] = 0.0
        model.blocks[1].attn.W_O[1] = 0.0
    whole = edge_attribution(model, CLEAN, CORRUPT, answers=ASKED)
    for reader in (("q", 1, 2), ("logits", None, None)):
        expected = score_of(whole, ("head", 0, 2), reader)
        assert score_of(frame, ("head", 0, 2), reader) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_only": True}, "a model must have heads and an MLP .* got a model without MLPs; pa"),
        ({"n_key_value_heads": 1}, "got a model whose heads share keys and values; patch_act"),
    ],
)
def test_models_without_such_edges_are_told_in_one_line(build_model, changes, message):
    with pytest.raises(ValueError, match=message):
        edge_attribution(build_model(**changes).eval(), CLEAN, CORRUPT, answers=ASKED)


def test_empty_layers_and_bridges_are_told_in_one_line(build_model):
    model = build_model().float().eval()
    bare = prune_heads(model, [(1, 0), (1, 1), (1, 2)])
    with pytest.raises(
        ValueError, match="got a model with a layer whose heads are all pruned; pat"
    ):
        edge_attribution(bare, CLEAN, CORRUPT, answers=ASKED)
    with pytest.raises(
        ValueError, match=r"must fork its stream .* got a TransformerBridge that doe"
    ):
        edge_attribution(model.to_boot_native(), CLEAN, CORRUPT, answers=ASKED)


def test_pairs_in_which_no_row_counts_are_left_out(build_model):
    model = build_model().eval()
    rows = ASKED.rows.clone()
    rows[1] = False
    some = Answers(right=ASKED.right, wrong=ASKED.wrong, rows=rows)
    frame = edge_attribution(model, CLEAN, CORRUPT, answers=some)
    alone = edge_attribution(model, CLEAN[:1], CORRUPT[:1], answers=ASKED[:1])
    pd.testing.assert_frame_equal(frame, alone)
    assert (frame["n_sequences"] == 1).all()
    assert frame[["ci_low", "ci_high"]].isna().all(axis=None)


def test_inference_mode_around_it_changes_nothing(build_model):
    model = build_model().eval()
    expected = edge_attribution(model, CLEAN, CORRUPT, answers=ASKED)
    with torch.inference_mode():
        clean, corrupt = CLEAN.clone(), CORRUPT.clone()
        asked = Answers.after(clean, torch.tensor([1, 2]), torch.tensor([4, 5]))
        assert edge_attribution(model, clean, corrupt, answers=asked).equals(expected)
        theirs = build_model().eval()
    with pytest.raises(ValueError, match=r"weights must be made outside of torch.inference_mode"):
        edge_attribution(theirs, CLEAN, CORRUPT, answers=ASKED)
