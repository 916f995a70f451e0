"""score_heads against planted heads, a naive triple loop, exact chance and the traps of input."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from lab.attention_reads import AttentionReads
from lab.tasks.registry import get_task
from probes.ablation.table import ablation_sweep
from probes.attention import heads as heads_module
from probes.attention.entropy import entropy_profile
from probes.attention.heads import head_masses, score_heads
from probes.planted import PlantedHead, plant, planted_mass
from probes.reading import observed_model as reads_module
from probes.reading.observed_model import probe_input, special_ids_of
from probes.registry import SOURCE_PROBES, choose_probes, load_function, probe_names
from probes.schemas.heads import HEADS


def scores_of(frame, probe):
    return frame[frame["probe"] == probe].sort_values(["layer", "head"])["score"].to_numpy()


def planted(*kinds, **options):
    """A model of one layer with a head of each kind."""
    return plant([[PlantedHead(kind=kind) for kind in kinds]], **options).model


def planted_with_induction(kind, **options):
    """A head of some kind in layer 0, beside the one that the induction head in layer 1 reads."""
    writer = PlantedHead(kind="previous", beta=30.0, writes="tokens")
    layers = [
        [PlantedHead(kind=kind), writer],
        [PlantedHead(kind="induction"), PlantedHead(kind="uniform")],
    ]
    return plant(layers, **options).model


NAIVE = (*SOURCE_PROBES, "previous", "current", "first", "duplicate", "induction", "preceder")
"""Probes of the loops below; a new one brings its own loop in a test of its own."""


def naive_scores(model, batch, special=(0, 1)):
    """These probes by loops over sequences, rows and keys, from the explicit pattern in float64."""
    _, cache = model.run_with_cache(batch.tokens)
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    tokens = batch.tokens.tolist()
    sources = [[[k for k in row if k >= 0] for row in one] for one in batch.sources.tolist()]
    n_pos = len(tokens[0])

    def targets(probe, b, q):
        x = tokens[b]
        if probe in SOURCE_PROBES:
            late = SOURCE_PROBES.index(probe)
            own = sources[b][q] if late else []
            return [k for k in sources[b][q - late] if k not in own] if q >= late else []
        if probe == "previous":
            return [q - 1] if q >= (2 if x[0] in special else 1) else []
        if probe in ("current", "first"):
            return [q if probe == "current" else 0] if q >= 1 else []
        copies = [k for k in range(q) if x[k] == x[q] and x[q] not in special]
        if probe == "preceder":
            return [k - 1 for k in copies if k >= 1 and x[k - 1] not in special]
        return copies if probe == "duplicate" else [k + 1 for k in copies]

    found = {}
    for probe in NAIVE:
        total = np.zeros((n_layers, n_heads))
        chance, n_rows = 0.0, 0
        for b in range(len(tokens)):
            for q in range(n_pos):
                keys = targets(probe, b, q)
                n_rows += bool(keys)
                chance += len(keys) / (q + 1)
                for layer in range(n_layers):
                    pattern = cache["pattern", layer]
                    for head in range(n_heads):
                        total[layer, head] += sum(pattern[b, head, q, k].item() for k in keys)
        found[probe] = (total / n_rows, chance / n_rows, n_rows)
    return found


def test_planted_head_scores_what_its_construction_says(distinct_batch):
    """Each column a probe, as in the table of tests/probes/test_planted.py."""
    model = planted_with_induction("duplicate")
    frame = score_heads(model, distinct_batch)
    table = frame.pivot_table(index=["layer", "head"], columns="probe", values="score")
    columns = ["previous", "current", "first", "sources", "sources_plus_1", "sources_plus_2"]
    for head, expected in {
        (0, 0): (0.0012, 0.0000, 0.5254, 0.0003, 0.9975, 0.0000),
        (1, 0): (0.0636, 0.0013, 0.5241, 0.0003, 0.0000, 0.9974),
        (1, 1): (0.1247, 0.1468, 0.1468, 0.0763, 0.0708, 0.0679),
    }.items():
        got = table[columns].to_numpy()[table.index.get_loc(head)]
        assert tuple(got.round(4)) == pytest.approx(expected, abs=1e-9)


def test_planted_positional_head_is_exact(distinct_batch):
    model = plant([[PlantedHead(kind="reversal", beta=2.0)]]).model
    frame = score_heads(model, distinct_batch, ["sources"])
    rows = range(9, 17)
    exact = sum(planted_mass(2.0, q) for q in rows) / len(rows)
    assert frame["score"].item() == pytest.approx(exact, abs=1e-12)


def test_duplicate_and_induction_heads_do_not_take_each_others_score():
    batch = get_task("induction", length=8).sample(4, seed=0)
    model = planted_with_induction("duplicate", n_ctx=batch.tokens.shape[1])
    frame = score_heads(model, batch, ["duplicate", "induction"])
    assert scores_of(frame, "duplicate")[[0, 2]].round(4).tolist() == [0.9975, 0.0]
    assert scores_of(frame, "induction")[[0, 2]].round(4).tolist() == [0.0, 0.9975]


@pytest.mark.parametrize("task", ["reversal", "copy", "sorting"])
def test_equal_to_a_naive_triple_loop(small_model, task):
    batch = get_task(task, length=5, n_symbols=4).sample(4, seed=2)
    frame = score_heads(small_model, batch)
    for probe, (score, chance, n_rows) in naive_scores(small_model, batch).items():
        rows = frame[frame["probe"] == probe].sort_values(["layer", "head"])
        np.testing.assert_allclose(rows["score"], score.ravel(), atol=1e-10)
        np.testing.assert_allclose(rows["chance"], chance, atol=1e-12)
        assert set(rows["n_rows"]) == {n_rows}


def test_uniform_head_has_kappa_zero_on_every_probe(repeating_batch):
    frame = score_heads(planted("uniform"), repeating_batch)
    assert frame["probe"].tolist() == list(probe_names())
    np.testing.assert_allclose(frame["kappa"], 0.0, atol=1e-12)


def test_control_is_read_at_the_cells_of_the_tokens(small_model, repeating_batch):
    control = repeating_batch.tokens.flip(0)
    frame = score_heads(small_model, repeating_batch, control=control)
    assert score_heads(small_model, repeating_batch)["control"].isna().all()
    _, cache = small_model.run_with_cache(control)
    x = probe_input(small_model, repeating_batch)
    for entry in choose_probes(None, has_sources=True):
        targets = load_function(entry)(x)
        cells = [
            (b, q, k)
            for b, (rows, keys) in enumerate(
                zip(targets.query_pos.tolist(), targets.key_pos.tolist(), strict=True)
            )
            for q, k in zip(rows, keys, strict=True)
            if k >= 0
        ]
        expected = [
            sum(cache["pattern", layer][b, head, q, k].item() for b, q, k in cells)
            / targets.n_rows.sum().item()
            for layer in range(2)
            for head in range(3)
        ]
        got = frame[frame["probe"] == entry.name].sort_values(["layer", "head"])["control"]
        np.testing.assert_allclose(got, expected, atol=1e-10)


@pytest.mark.usefixtures("as_a_user")
def test_control_of_another_shape_is_refused(small_model, repeating_batch):
    with pytest.raises(ValueError, match=r"control must have the shape \[5, 14\] of the tokens"):
        score_heads(small_model, repeating_batch, control=repeating_batch.tokens[:, 1:])


def test_preceder_stands_before_the_copy_and_bos_is_none():
    model = planted("uniform")
    tokens = torch.tensor([[0, 2, 3, 4, 2, 3, 4]])
    frame = score_heads(model, tokens, ["preceder"], special_ids=(0, 1))
    assert frame["n_rows"].item() == 2  # before the first 2 stands BOS
    assert frame["score"].item() == pytest.approx((1 / 6 + 1 / 7) / 2)
    assert score_heads(model, tokens, ["preceder"])["n_rows"].item() == 3


def test_table_is_one_row_a_layer_head_and_probe_in_order(small_model, repeating_batch):
    frame = score_heads(small_model, repeating_batch, ["previous", "sources"])
    assert frame.columns.tolist() == HEADS.names
    keys = list(zip(frame["layer"], frame["head"], frame["probe"], strict=True))
    assert keys == [
        (layer, head, probe)
        for layer in range(2)
        for head in range(3)
        for probe in ("previous", "sources")
    ]
    assert frame["score"].between(0, 1).all()
    assert (frame["n_sequences"] == 5).all()
    assert frame.attrs["dtype"] == "float64"
    assert frame.attrs["definition_version"] == HEADS.version


def test_interval_is_of_sequences_and_the_same_every_time(small_model, repeating_batch):
    one = score_heads(small_model, repeating_batch, seed=4)
    two = score_heads(small_model, repeating_batch, seed=4)
    assert one.equals(two)
    assert (one["ci_low"] <= one["score"] + 1e-12).all()
    assert (one["score"] <= one["ci_high"] + 1e-12).all()


def test_one_sequence_has_no_interval(small_model, repeating_batch):
    frame = score_heads(small_model, repeating_batch[:1])
    assert frame[["ci_low", "ci_high"]].isna().all(axis=None)
    assert frame["score"].notna().all()


def test_split_into_pieces_changes_nothing(small_model, repeating_batch, monkeypatch):
    whole = score_heads(small_model, repeating_batch)
    monkeypatch.setattr(heads_module, "GATHERED_NUMBERS", 50)
    monkeypatch.setattr(reads_module, "TOKENS_AT_ONCE", 1)
    pieces = score_heads(small_model, repeating_batch)
    pd.testing.assert_frame_equal(pieces, whole, check_exact=False, rtol=0, atol=1e-13)


def test_masses_of_a_batch_are_those_of_its_sequences(small_model, repeating_batch):
    together, *alone = (
        head_masses(small_model, probe_input(small_model, batch))
        for batch in (repeating_batch, *(repeating_batch[i : i + 1] for i in range(5)))
    )
    for i, masses in enumerate(together):
        np.testing.assert_allclose(
            masses.mass, np.concatenate([one[i].mass for one in alone]), atol=1e-12
        )
        assert masses.n_rows.tolist() == [one[i].n_rows[0] for one in alone]


def test_matrix_is_never_built(small_model, repeating_batch, monkeypatch):
    def refuse(*_):
        raise AssertionError("a probe asked for whole rows")

    monkeypatch.setattr(AttentionReads, "tiles", refuse)
    monkeypatch.setattr(AttentionReads, "pattern", refuse)
    score_heads(small_model, repeating_batch)


def test_swapping_heads_swaps_scores(build_model, repeating_batch):
    model, swapped = build_model(), build_model()
    with torch.no_grad():
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            weight = getattr(swapped.blocks[1].attn, name)
            weight.copy_(weight[[2, 0, 1]].clone())
    before = score_heads(model, repeating_batch).set_index(["layer", "head", "probe"])["score"]
    after = score_heads(swapped, repeating_batch).set_index(["layer", "head", "probe"])["score"]
    for new, old in enumerate([2, 0, 1]):
        np.testing.assert_allclose(after[1, new], before[1, old], atol=1e-12)


def test_pruned_model_speaks_of_its_original_heads(small_model, repeating_batch):
    from probes.pruning.removing import prune_heads

    pruned = prune_heads(small_model, [(1, 0), (1, 1)])
    frame = score_heads(pruned, repeating_batch, ["sources"])
    assert frame[["layer", "head"]].to_numpy().tolist() == [[0, 0], [0, 1], [0, 2], [1, 2]]


def test_resting_on_bos_is_no_previous_token_head():
    tokens = torch.tensor([[0, 2, 3, 4, 5]])
    frame = score_heads(planted("first"), tokens, ["previous"], special_ids=(0, 1))
    assert frame["score"].item() < 1e-4
    assert frame["n_rows"].item() == 3


def test_without_bos_the_second_row_counts_too():
    tokens = torch.tensor([[2, 3, 4, 5], [0, 3, 4, 5]])
    frame = score_heads(planted("uniform"), tokens, ["previous"], special_ids=(0, 1))
    assert frame["n_rows"].item() == 3 + 2
    assert frame["score"].item() == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 1 / 3 + 1 / 4) / 5)


def test_mass_on_several_copies_is_summed():
    tokens = torch.tensor([[0, 3, 3, 5, 3]])
    frame = score_heads(planted("duplicate"), tokens, ["duplicate"])
    assert frame["n_rows"].item() == 2
    assert frame["score"].item() > 0.99


def test_equal_special_tokens_are_no_duplicates():
    tokens = torch.tensor([[0, 2, 1, 0, 1, 3]])
    model = planted("uniform")
    frame = score_heads(model, tokens, ["duplicate", "induction"], special_ids=(0, 1))
    assert frame["score"].isna().all()
    counted = score_heads(model, tokens, ["duplicate"])
    assert counted["n_rows"].item() == 2


def test_ids_that_are_no_words_are_the_tokenizer_s(build_model):
    tokens = torch.tensor([[0, 1, 0, 1, 5, 5]])
    model = build_model()

    def n_rows():
        return score_heads(model, tokens, ["duplicate"])["n_rows"].unique().tolist()

    assert n_rows() == [3]  # an id of plain tokens may be any word
    model.tokenizer = SimpleNamespace(bos_token_id=5, eos_token_id=5, pad_token_id=None)
    with_names = special_ids_of(model, tokens)
    assert with_names == (5,)
    assert n_rows() == [2]
    model.tokenizer = get_task("reversal", length=3, n_symbols=4).vocab
    assert n_rows() == [1]


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_padding_changes_nothing_that_is_scored(build_model, repeating_batch, direction):
    model = build_model(attention_dir=direction)
    tokens = repeating_batch.tokens[:, :7]
    alone = score_heads(model, tokens, special_ids=(0, 1))
    for left, right in ((2, 0), (0, 3), (1, 1)):
        padded = F.pad(tokens, (left, right), value=3)
        mask = F.pad(torch.ones_like(tokens), (left, right))
        frame = score_heads(model, padded, special_ids=(0, 1), attention_mask=mask)
        pd.testing.assert_frame_equal(frame, alone, check_exact=False, rtol=0, atol=1e-10)
    uneven = mask.clone()
    uneven[0, :4] = 0
    frame = score_heads(model, padded, ["first"], attention_mask=uneven.bool())
    assert set(frame["n_rows"]) == {4 * 6 + 3}


def test_even_head_of_a_bidirectional_model_is_at_chance(build_model, repeating_batch):
    model = build_model(attention_dir="bidirectional", n_layers=1)
    with torch.no_grad():
        model.blocks[0].attn.W_Q.zero_()
        model.blocks[0].attn.b_Q.zero_()
    frame = score_heads(model, repeating_batch)
    np.testing.assert_allclose(frame["kappa"], 0.0, atol=1e-12)
    first = frame[frame["probe"] == "first"]
    np.testing.assert_allclose(first["score"], 1 / repeating_batch.tokens.shape[1])


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(1, 3), r"attention_mask must be of shape \(1, 4\), got \(1, 3\); give"),
        (torch.zeros(1, 4), r"a real token in every sequence, got a sequence of padding"),
    ],
)
def test_wrong_masks_are_refused(small_model, mask, message):
    with pytest.raises(ValueError, match=message):
        score_heads(small_model, torch.tensor([[0, 2, 3, 2]]), attention_mask=mask.bool())


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("given", "got"),
    [
        ([[0, 2]], "a value of type list; pass"),
        ("abc", "a value of type str; pass"),
        (torch.tensor([0, 2]), r"a tensor of shape \[2\]; pass"),
        (torch.zeros(2, 2), "a tensor of float32; pass"),
    ],
)
@pytest.mark.parametrize("probe", [score_heads, entropy_profile, ablation_sweep])
def test_what_is_no_tokens_is_told_in_one_line(small_model, probe, given, got):
    with pytest.raises(ValueError, match=rf"tokens must be a task's batch or .*, got {got}"):
        probe(small_model, given)


def test_palindrome_keeps_positional_sources():
    task = get_task("reversal", length=5)
    batch = task.sequences(torch.tensor([[4, 3, 2, 3, 4]]))
    frame = score_heads(planted_with_induction("reversal", word=5), batch)
    right, _, wrong, _ = scores_of(frame, "sources")
    assert right > 0.999
    assert wrong < 0.6


def test_nothing_to_score_is_missing_and_not_zero():
    frame = score_heads(planted("uniform"), torch.tensor([[0], [2]]))
    assert set(frame["probe"]) == {e.name for e in choose_probes(None, has_sources=False)}
    assert frame[["score", "chance", "kappa", "ci_low", "ci_high"]].isna().all(axis=None)
    assert (frame[["n_rows", "n_sequences"]] == 0).all(axis=None)


def test_sequences_without_a_row_are_not_counted():
    tokens = torch.tensor([[0, 2, 3, 2], [0, 2, 3, 4]])
    frame = score_heads(planted("uniform"), tokens, ["duplicate"])
    assert frame[["n_sequences", "n_rows"]].to_numpy().tolist() == [[1, 1]]
    assert frame["score"].item() == pytest.approx(1 / 4)


def test_half_precision_is_read_in_float32(build_model, repeating_batch):
    model = build_model(initializer_range=0.2)
    exact = score_heads(model, repeating_batch)
    rough = score_heads(model.bfloat16(), repeating_batch)
    assert rough.attrs["dtype"] == "bfloat16"
    np.testing.assert_allclose(rough["score"], exact["score"], atol=0.05)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_empty_batch_is_refused(small_model, shape):
    with pytest.raises(ValueError, match="tokens must be at least one sequence of at least one"):
        score_heads(small_model, torch.zeros(shape, dtype=torch.long))


def test_plain_tokens_have_no_sources(small_model):
    tokens = torch.tensor([[0, 2, 3]])
    with pytest.raises(ValueError, match=r"'sources' must be a task's batch, .* got plain tokens"):
        score_heads(small_model, tokens, ["sources"])


def test_nobody_is_left_listening_or_changed(build_model, repeating_batch):
    model = build_model()
    before = model(repeating_batch.tokens)
    score_heads(model, repeating_batch)
    assert torch.equal(model(repeating_batch.tokens), before)
    assert all(not hook.fwd_hooks for hook in model.hook_dict.values())


@pytest.mark.parametrize("name", ["hook_pattern", "hook_attn_scores"])
@pytest.mark.parametrize("probe", [score_heads, entropy_profile])
def test_edit_that_no_probe_would_see_is_refused(build_model, repeating_batch, probe, name):
    model = build_model()
    model.add_hook(f"blocks.1.attn.{name}", lambda x, hook: x * 0)
    with pytest.raises(ValueError, match=rf"no hook on .*, got one on blocks.1.attn.{name}: "):
        probe(model, repeating_batch)
    model.reset_hooks()
    model.add_hook("blocks.1.attn.hook_q", lambda x, hook: x * 0)
    evenly = score_heads(model, repeating_batch, ["first"])
    np.testing.assert_allclose(evenly[evenly["layer"] == 1]["kappa"], 0.0, atol=1e-12)
