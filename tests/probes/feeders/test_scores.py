"""Feeders against hooks that do the same by hand, and on planted induction circuits."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch

from lab.hooked_gpt import HookedGPT
from probes.ablation.sweep import Ablation
from probes.ablation.table import head_donors, mean_reference
from probes.execution import Execution
from probes.feeders import passes_without_heads as runs
from probes.feeders.scores import feeder_scores, is_fed
from probes.planted import PlantedHead, plant
from probes.pruning.removing import prune_heads
from probes.reading.inputs import PairedInput, repeated_pair
from probes.schemas.cause import FEEDERS

BETA = 10.0
WRITER = PlantedHead(kind="previous", beta=40.0, writes="tokens")
IDLE = PlantedHead(kind="first", beta=12.0)
INDUCTION = PlantedHead(kind="induction", beta=BETA, writes="copy")


def circuit(*first: PlantedHead) -> HookedGPT:
    """An induction head in layer 1 that some heads of layer 0 may feed."""
    row = (*first, *[IDLE] * (4 - len(first)))
    second = (INDUCTION, IDLE, dataclasses.replace(IDLE, kind="current"), IDLE)
    return plant([row, second], d_vocab=40, n_ctx=25).model


def blocks_of(model: HookedGPT) -> PairedInput:
    """Five sequences of two blocks of 12 tokens behind a first one."""
    return repeated_pair(model, n_sequences=5, block=12)


@pytest.fixture(scope="module")
def split_circuit() -> HookedGPT:
    """Two heads of layer 0 that each write half of what the induction head needs."""
    model = circuit(WRITER)
    attn = model.blocks[0].attn
    with torch.no_grad():
        attn.W_O[0] *= 0.5
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            getattr(attn, name)[1] = getattr(attn, name)[0]
    return model


def by_hooks(model, pair, heads, targets, patterns=None):
    """Scores of the targets and the second copy's loss, from whole matrices, one plain run."""

    def silence(z, hook):
        layer = int(hook.name.split(".")[1])
        ids = model.config.heads_of(layer)
        for at, head in heads:
            if at == layer:
                z[:, :, ids.index(head)] = 0.0
        return z

    found = {}

    def look(pattern, hook):
        found[int(hook.name.split(".")[1])] = pattern.detach().clone()
        return pattern if patterns is None else patterns[hook.name]

    hooks = [(lambda name: name.endswith("hook_z"), silence)]
    hooks.append((lambda name: name.endswith("hook_pattern"), look))
    logits = model.run_with_hooks(pair.tokens, fwd_hooks=hooks)
    S = pair.block
    scores = [
        np.mean(
            [
                found[layer][:, model.config.heads_of(layer).index(head), q, q - S + 1]
                .mean()
                .item()
                for q in range(pair.second, pair.second + S)
            ]
        )
        for layer, head in targets
    ]
    nll = [
        -logits[:, p].log_softmax(-1).gather(1, pair.tokens[:, [p + 1]]).mean().item()
        for p in range(pair.second, pair.second + S - 1)
    ]
    return scores, np.mean(nll)


ARCHITECTURES = {
    "plain": {},
    "grouped queries, rotary, parallel": {
        "n_heads": 4,
        "d_model": 16,
        "n_key_value_heads": 2,
        "positional_embedding_type": "rotary",
        "normalization_type": "RMS",
        "parallel_attn_mlp": True,
    },
}


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_every_ablation_is_what_hooks_do(build_model, changes):
    model = build_model(n_layers=3, d_vocab=30, n_ctx=20, **changes)
    pair = repeated_pair(model, n_sequences=4, block=6)
    targets = [(1, 0), (2, 1), (2, 2)]
    frame = feeder_scores(model, pair, targets=targets, frozen=True)
    assert frame.columns.tolist() == FEEDERS.names
    singles = frame[frame["head"].notna()]
    n = model.config.n_heads
    assert len(singles) == n + 2 * 2 * n
    assert (singles["layer"] < singles["target_layer"]).all()
    whole, loss = by_hooks(model, pair, [], targets)
    _, cache = model.run_with_cache(pair.tokens)
    patterns = {name: cache[name] for name in cache if name.endswith("hook_pattern")}
    for row in singles.itertuples():
        at = targets.index((row.target_layer, row.target_head))
        own = [(int(row.layer), int(row.head))]
        scores, ablated_loss = by_hooks(model, pair, own, targets)
        assert row.baseline == pytest.approx(whole[at], abs=1e-10)
        assert row.ablated == pytest.approx(scores[at], abs=1e-10)
        assert row.drop == pytest.approx(whole[at] - scores[at], abs=1e-10)
        assert row.ci_low <= row.drop <= row.ci_high
        assert row.loss == pytest.approx(loss, abs=1e-10)
        assert row.loss_delta == pytest.approx(ablated_loss - loss, abs=1e-10)
        assert row.loss_ci_low <= row.loss_delta <= row.loss_ci_high
        _, frozen_loss = by_hooks(model, pair, own, targets, patterns)
        assert row.frozen_loss_delta == pytest.approx(frozen_loss - loss, abs=1e-10)
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_the_head_that_writes_what_stood_before_is_found():
    """Closed form: fed, a key of the copy scores beta against beta / 2 of the first key."""
    model = circuit(WRITER)
    frame = feeder_scores(model, blocks_of(model))
    assert frame["target_layer"].unique().tolist() == [1]
    assert frame["target_head"].unique().tolist() == [0]
    fed = [math.exp(BETA) / (math.exp(BETA) + math.exp(BETA / 2) + q - 1) for q in range(13, 25)]
    starved = [1.0 / (math.exp(BETA / 2) + q) for q in range(13, 25)]
    row = frame.iloc[0]
    assert row["heads"] == "L0H0"
    assert row["baseline"] == pytest.approx(np.mean(fed), abs=1e-9)
    assert row["ablated"] == pytest.approx(np.mean(starved), abs=1e-9)
    assert row["previous"] == pytest.approx(1.0, abs=1e-6)
    assert row["loss_delta"] > 0.5
    assert row["control"] == pytest.approx(0.0, abs=1e-12)
    assert row["n_controls"] == 3
    assert frame["feeds"].tolist() == [True, False, False, False]
    np.testing.assert_allclose(frame["drop"].iloc[1:], 0.0, atol=1e-12)
    # It feeds keys: by the weights too, and not through what the induction head then moves.
    assert row["k_composition"] > max(row["q_composition"], row["v_composition"]) + 0.05


def test_heads_that_feed_together_are_ablated_together(split_circuit):
    """Half a code is worth beta / 2, as much as the first key: alone each costs half, not all."""
    frame = feeder_scores(split_circuit, blocks_of(split_circuit))
    joint, first, second = (frame.iloc[i] for i in range(3))
    assert joint["heads"] == "L0H0,L0H1" and frame["head"].isna().tolist()[0]
    assert np.isnan(joint["previous"]) and np.isnan(joint["k_composition"])
    half = [math.exp(BETA / 2) / (2 * math.exp(BETA / 2) + q - 1) for q in range(13, 25)]
    assert first["ablated"] == pytest.approx(np.mean(half), abs=1e-9)
    assert second["ablated"] == pytest.approx(np.mean(half), abs=1e-9)
    assert joint["ablated"] < 0.01
    assert joint["control"] == pytest.approx(0.0, abs=1e-12)
    assert joint["n_controls"] == 1  # two other heads, one pair of them
    assert frame["feeds"].tolist() == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("drop", "low", "control", "fed"),
    [
        (0.6, 0.5, 0.1, True),
        (0.6, 0.5, 0.2, False),  # others cost a third of that
        (0.6, 0.3, 0.1, False),  # half of the score is not sure
        (0.3, 0.2, math.nan, False),  # too little, with any control
        (0.6, 0.5, math.nan, None),
        (0.6, math.nan, 0.1, None),  # one sequence
    ],
)
def test_who_feeds_is_said_only_where_it_can_be_told(drop, low, control, fed):
    assert is_fed(0.8, drop, low, control) is fed


def test_a_head_alone_in_its_layer_is_compared_with_the_nearest_layer():
    """All of layer 1 but the feeder was pruned: the controls are the heads of layer 0."""
    second = (WRITER, IDLE)
    rows = [(IDLE, IDLE), second, (INDUCTION, IDLE)]
    model = prune_heads(plant(rows, d_vocab=40, n_ctx=25).model, [(1, 1)])
    frame = feeder_scores(model, blocks_of(model), targets=[(2, 0)]).set_index("heads")
    assert frame["n_controls"].to_dict() == {"L0H0": 1, "L0H1": 1, "L1H0": 2}
    assert frame.loc["L1H0", "control"] == pytest.approx(0.0, abs=1e-9)
    assert frame["feeds"].tolist() == [False, False, True]


def test_frozen_attention_hides_what_goes_through_keys():
    model = circuit(WRITER)
    frame = feeder_scores(model, blocks_of(model), frozen=True)
    np.testing.assert_allclose(frame["frozen_loss_delta"], 0.0, atol=1e-12)
    without = feeder_scores(model, blocks_of(model))
    assert without["frozen_loss_delta"].isna().all()


def test_a_mean_and_donors_fill_the_gap(build_model):
    model = build_model(n_layers=2, d_vocab=30, n_ctx=20)
    pair = repeated_pair(model, n_sequences=3, block=6)
    targets = [(1, 1)]
    donors = head_donors(model, pair.control)
    resampled = feeder_scores(
        model, pair, targets=targets, ablation=Ablation(mode="resample", donors=donors)
    )
    each = [
        feeder_scores(
            model, pair, targets=targets, ablation=Ablation(mode="mean", reference=reference)
        )
        for reference in donors.references()
    ]
    for name in ("ablated", "loss_delta", "drop"):
        expected = np.mean([frame[name] for frame in each], axis=0)
        np.testing.assert_allclose(resampled[name], expected, atol=1e-10)
    assert resampled.attrs["ablation"]["n_donors"] == 3
    own = mean_reference(model, pair.tokens[:1])
    unchanged = feeder_scores(
        model,
        dataclasses.replace(pair, tokens=pair.tokens[:1], control=pair.control[:1]),
        targets=targets,
        ablation=Ablation(mode="mean", reference=own),
    )
    np.testing.assert_allclose(unchanged["drop"], 0.0, atol=1e-12)


def test_at_positions_that_nobody_reads_nothing_happens(build_model):
    model = build_model(n_layers=2, d_vocab=30, n_ctx=20)
    pair = repeated_pair(model, n_sequences=3, block=6)
    last = pair.tokens.shape[1] - 1
    frame = feeder_scores(
        model, pair, targets=[(1, 1)], ablation=Ablation(positions=(last + 1, last + 2))
    )
    np.testing.assert_allclose(frame["drop"], 0.0, atol=1e-12)
    early = feeder_scores(model, pair, targets=[(1, 1)], ablation=Ablation(positions=(2,)))
    assert early["drop"].abs().max() > 1e-6


def test_a_pruned_model_speaks_original_ids(build_model):
    model = build_model(n_layers=3, d_vocab=30, n_ctx=20)
    gone = [(0, 0), (1, 0), (1, 1), (1, 2), (2, 1)]
    pruned = prune_heads(model, gone)
    pair = repeated_pair(model, n_sequences=3, block=6)
    frame = feeder_scores(pruned, pair, targets=[(2, 2)])
    assert frame["heads"].tolist() == ["L0H1", "L0H2"]
    whole, _ = by_hooks(model, pair, gone, [(2, 2)])
    without, _ = by_hooks(model, pair, [*gone, (0, 1)], [(2, 2)])
    assert frame["drop"].iloc[0] == pytest.approx(whole[0] - without[0], abs=1e-10)


def test_pieces_and_chosen_feeders_give_the_same_rows(split_circuit, monkeypatch):
    from probes.feeders import passes_without_heads as module

    pair = blocks_of(split_circuit)
    whole = feeder_scores(split_circuit, pair)
    calls = []
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 60)
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 500)
    some = feeder_scores(
        split_circuit,
        pair,
        feeders=[(0, 1), (0, 2)],
        execution=Execution(progress=lambda done, total: calls.append((done, total))),
    )
    assert some["heads"].tolist() == ["L0H1", "L0H2"]
    numbers = ["previous", "drop", "ci_low", "control", "loss_delta", "loss_control"]
    rows = whole[whole["heads"].isin(["L0H1", "L0H2"])]
    np.testing.assert_allclose(some[numbers], rows[numbers], atol=1e-10)
    assert calls[-1][0] == calls[-1][1]
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_the_model_is_left_as_it_is(build_model):
    model = build_model(n_layers=2, d_vocab=30, n_ctx=20).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    feeder_scores(model, repeated_pair(model, n_sequences=2, block=6), targets=[(1, 0)])
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_wrong_requests_are_refused(build_model):
    model = build_model(n_layers=2, d_vocab=30, n_ctx=20)
    pair = repeated_pair(model, n_sequences=2, block=6)
    with pytest.raises(ValueError, match=r"targets must be induction heads, .* got 0\.\d\d of L1H"):
        feeder_scores(model, pair)
    with pytest.raises(ValueError, match="feeders must be in layers before their target, got"):
        feeder_scores(model, pair, targets=[(0, 1)])
    with pytest.raises(ValueError, match=r"targets must be at least one head, got \(\)"):
        feeder_scores(model, pair, targets=[])
    with pytest.raises(ValueError, match="got L1H0 for L1H1"):
        feeder_scores(model, pair, targets=[(1, 1)], feeders=[(1, 0)])
    with pytest.raises(ValueError, match="unknown head 'L7H0'"):
        feeder_scores(model, pair, targets=[(7, 0)])
    with pytest.raises(ValueError, match="got no head behind the first layer"):
        feeder_scores(build_model(n_layers=1, d_vocab=30, n_ctx=20), pair)
    hook = ("blocks.1.attn.hook_pattern", lambda pattern, hook: pattern)
    with (
        model.hooks([hook]),
        pytest.raises(ValueError, match="a probed model must have no hook on scores"),
    ):
        feeder_scores(model, pair, targets=[(1, 1)])


def test_interrupted_runs_go_on_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "TOKENS_AT_ONCE", 30)  # one sequence, one set
    model = circuit(WRITER)
    asked = {"targets": [(1, 0)], "feeders": [(0, 0), (0, 1)], "frozen": True}
    pair = repeated_pair(model, n_sequences=2, block=12)
    whole = feeder_scores(model, pair, **asked)

    def interrupt(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feeder_scores(
            model, pair, **asked, execution=Execution(ledger=tmp_path, progress=interrupt)
        )
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert len(kept) == 4
    again = feeder_scores(model, pair, **asked, execution=Execution(ledger=tmp_path))
    pd.testing.assert_frame_equal(again, whole, check_exact=True)
    assert len(list(tmp_path.glob("*.npz"))) > 4
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    with pytest.raises(ValueError, match="the very same work, got one that differs in frozen in"):
        feeder_scores(model, pair, targets=[(1, 0)], execution=Execution(ledger=tmp_path))
