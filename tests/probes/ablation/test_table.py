"""The sweep against one evaluation an ablation, and against hooks that do the same by hand."""

import numpy as np
import pytest
import torch

from lab.evaluation import evaluate
from lab.gates import HeadGates
from lab.naming import parse_head
from lab.tasks.registry import get_task
from probes.ablation.pairs import pair_effects
from probes.ablation.sweep import Ablation, sweep_sets
from probes.ablation.table import ablation_sweep, head_donors, mean_reference
from probes.execution import Execution
from probes.schemas.cause import ABLATION

TASK = get_task("reversal", length=6, n_symbols=4)


@pytest.fixture(scope="module")
def reference(small_model):
    return mean_reference(small_model, TASK.sample(7, seed=0, split="reference"), name="seven")


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_equal_to_evaluating_every_ablation_alone(small_model, repeating_batch, reference, mode):
    fill = reference if mode == "mean" else None
    ablation = Ablation(mode=mode, reference=fill)
    frame = ablation_sweep(small_model, repeating_batch, ablation)
    whole = evaluate(small_model, repeating_batch)
    assert frame["heads"].unique().tolist() == [
        *("L0H0", "L0H1", "L0H2", "L0H0,L0H1,L0H2"),
        *("L1H0", "L1H1", "L1H2", "L1H0,L1H1,L1H2"),
    ]
    for row in frame.itertuples():
        heads = [parse_head(label) for label in row.heads.split(",")]
        gates = HeadGates.ablate(heads, like=small_model, fill=fill)
        alone = evaluate(
            small_model, repeating_batch, gates=gates.tensors(small_model, [reference])
        )
        assert row.baseline == pytest.approx(getattr(whole, row.metric), abs=1e-12)
        assert row.ablated == pytest.approx(getattr(alone, row.metric), abs=1e-12)
        assert row.delta == pytest.approx(row.ablated - row.baseline, abs=1e-15)
        assert row.ci_low <= row.delta + 1e-12
        assert row.delta <= row.ci_high + 1e-12


def test_zero_ablation_is_zeroing_z_by_a_hook(small_model, repeating_batch):
    def silence(z, hook):
        z[:, :, 2] = 0.0
        return z

    logits = small_model.run_with_hooks(
        repeating_batch.tokens, fwd_hooks=[("blocks.1.attn.hook_z", silence)]
    )
    nll = -logits.log_softmax(-1).gather(2, repeating_batch.tokens.roll(-1, 1).unsqueeze(2))
    by_hand = nll.squeeze(2)[repeating_batch.loss_mask].mean().item()
    frame = ablation_sweep(small_model, repeating_batch, metrics=["loss"])
    row = frame[frame["heads"] == "L1H2"]
    assert row["ablated"].item() == pytest.approx(by_hand, abs=1e-10)


def test_mean_reference_is_the_mean_of_hook_z(small_model, reference):
    batch = TASK.sample(7, seed=0, split="reference")
    _, cache = small_model.run_with_cache(batch.tokens)
    for layer in range(2):
        exact = cache["z", layer].mean(dim=0)
        torch.testing.assert_close(reference.z[layer], exact, atol=1e-12, rtol=1e-12)
    level = mean_reference(small_model, batch, per_position=False)
    torch.testing.assert_close(level.z, reference.z.mean(1, keepdim=True))
    again = mean_reference(small_model, batch)
    assert again.sha256 == reference.sha256


def test_digest_tells_models_sequences_and_kinds_of_mean_apart(build_model):
    one, other = build_model(), build_model(seed=4)
    tokens = TASK.sample(3, seed=0, split="reference").tokens
    real = torch.ones_like(tokens, dtype=torch.bool)
    padded = real.clone()
    padded[0, :2] = False
    fills = [
        mean_reference(one, tokens),
        mean_reference(one, tokens, per_position=False),
        mean_reference(one, tokens, attention_mask=padded),
        mean_reference(other, tokens),
        mean_reference(one, tokens.flip(0)),
        head_donors(one, tokens),
        head_donors(other, tokens),
        head_donors(one, tokens, attention_mask=padded),
    ]
    assert len({fill.sha256 for fill in fills}) == len(fills)
    assert mean_reference(one, tokens, attention_mask=real).sha256 == fills[0].sha256
    assert head_donors(one, tokens, attention_mask=real).sha256 == fills[5].sha256


def test_padding_is_in_no_mean(build_model):
    model = build_model(positional_embedding_type="rotary")
    tokens = TASK.sample(3, seed=0, split="reference").tokens
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :2] = real[2, :5] = False
    _, cache = model.run_with_cache(tokens, attention_mask=real)
    found = mean_reference(model, tokens[[0, 2, 1]], attention_mask=real[[0, 2, 1]])
    level = mean_reference(model, tokens, attention_mask=real, per_position=False)
    for layer in range(2):
        z = cache["z", layer]
        for pos in range(tokens.shape[1]):
            exact = z[real[:, pos], pos].mean(dim=0)
            torch.testing.assert_close(found.z[layer, pos], exact, atol=1e-12, rtol=1e-12)
        exact = z[real].mean(dim=0)
        torch.testing.assert_close(level.z[layer, 0], exact, atol=1e-12, rtol=1e-12)
    real[1, 0] = False
    with pytest.raises(ValueError, match=r"must be a real token of some seq.* at position 0; take"):
        mean_reference(model, tokens, attention_mask=real)
    mean_reference(model, tokens, attention_mask=real, per_position=False)


def test_at_its_padding_a_donor_gives_what_the_next_real_one_does(build_model):
    model = build_model(positional_embedding_type="rotary")
    tokens = TASK.sample(4, seed=0, split="reference").tokens
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :2] = real[2, :3] = real[3, :1] = False
    _, cache = model.run_with_cache(tokens, attention_mask=real)
    donors = head_donors(model, tokens, attention_mask=real)
    for donor in range(4):
        for pos in range(tokens.shape[1]):
            giver = donor
            while not real[giver, pos]:
                giver = (giver + 1) % 4
            for layer in range(2):
                exact = cache["z", layer][giver, pos]
                found = donors.z[donor, layer, pos]
                torch.testing.assert_close(found, exact, atol=1e-12, rtol=1e-12)
    real[1, 0] = False
    with pytest.raises(ValueError, match=r"only padding at position 0; give sequences of the full"):
        head_donors(model, tokens, attention_mask=real)


@pytest.mark.parametrize("seed", [-1, 1.5])
def test_a_wrong_seed_is_refused_before_anything_runs(
    as_a_user, small_model, repeating_batch, seed
):
    ran = []
    execution = Execution(progress=lambda *done: ran.append(done))
    for table in (ablation_sweep, pair_effects):
        with pytest.raises(ValueError, match=f"seed must be a whole number of .*, got {seed}"):
            table(small_model, repeating_batch, seed=seed, execution=execution)
    assert not ran


def test_head_that_writes_nothing_changes_nothing(build_model, repeating_batch):
    model = build_model()
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] = 0.0
    frame = ablation_sweep(model, repeating_batch)
    idle = frame[frame["heads"] == "L0H1"]
    np.testing.assert_allclose(idle["delta"], 0.0, atol=1e-14)
    assert frame[frame["heads"] == "L0H0"]["delta"].abs().max() > 1e-3


def test_rows_of_whole_layers_have_no_head(small_model, repeating_batch):
    frame = ablation_sweep(small_model, repeating_batch, metrics=["exact_match"])
    assert frame.columns.tolist() == ABLATION.names
    assert frame["head"].isna().tolist() == [False, False, False, True] * 2
    assert frame["unit"].unique().tolist() == ["share"]
    assert frame.attrs["reference"] is None


def test_split_into_pieces_changes_nothing(small_model, repeating_batch):
    whole = ablation_sweep(small_model, repeating_batch)
    pieces = ablation_sweep(small_model, repeating_batch, execution=Execution(memory=1))
    np.testing.assert_allclose(pieces["ablated"], whole["ablated"], atol=1e-12)


def test_pruned_model_is_swept_by_original_ids(small_model, repeating_batch, reference):
    from probes.pruning.removing import prune_heads

    pruned = prune_heads(small_model, [(0, 0), (0, 1), (0, 2), (1, 1)])
    frame = ablation_sweep(pruned, repeating_batch, metrics=["loss"])
    assert frame["heads"].tolist() == ["L1H0", "L1H2", "L1H0,L1H2"]
    gates = HeadGates.ablate([(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)], like=small_model)
    gated = evaluate(small_model, repeating_batch, gates=gates)
    assert frame["ablated"].iloc[1] == pytest.approx(gated.loss, abs=1e-10)
    mean = mean_reference(pruned, repeating_batch)
    assert mean.z.shape == (2, 14, 3, 4)
    assert (mean.z[0] == 0).all()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"mode": "zeros"}, r"unknown ablation mode 'zeros'.*did you mean 'zero'"),
        ({"sets": "layers"}, "unknown sets 'layers'; choose from heads, heads and layers"),
        ({"mode": "mean"}, r"reference must be given for mode 'mean', got None; pass"),
        ({"metrics": ["los"]}, r"unknown metric 'los'.*did you mean 'loss'"),
    ],
)
def test_wrong_requests_are_refused(small_model, repeating_batch, request_, message):
    with pytest.raises(ValueError, match=message):
        ablation_sweep(small_model, repeating_batch, **request_)
    with pytest.raises(ValueError, match="got 0 sequences"):
        ablation_sweep(small_model, repeating_batch[:0])


def test_plain_tokens_are_scored_on_every_next_token(small_model, repeating_batch):
    tokens = repeating_batch.tokens
    ablation = Ablation(mode="mean", reference=mean_reference(small_model, tokens))
    frame = ablation_sweep(small_model, tokens, ablation)
    rows = frame[frame["heads"] == "L0H1"].set_index("metric")
    logits = small_model(tokens)
    assert rows["baseline"]["loss"] == pytest.approx(small_model(tokens, "loss").item(), abs=1e-12)
    right = logits[:, :-1].argmax(-1) == tokens[:, 1:]
    assert rows["baseline"]["token_accuracy"] == pytest.approx(right.double().mean().item())
    assert rows["baseline"]["exact_match"] == right.all(1).double().mean().item()
    assert np.isfinite(frame["delta"]).all()
    assert np.isnan(ablation_sweep(small_model, tokens[:, :1], metrics=["loss"])["baseline"]).all()


def test_whole_layers_are_left_out_of_large_models_unless_asked_for(build_model, repeating_batch):
    model = build_model(n_layers=1, n_heads=101, d_head=2)
    few = repeating_batch[:1]
    large = ablation_sweep(model, few, metrics=["loss"])
    assert large["head"].tolist() == list(range(101))
    asked = ablation_sweep(model, few, metrics=["loss"], sets="heads and layers")
    assert asked["head"].isna().tolist() == [False] * 101 + [True]
    small = ablation_sweep(build_model(), few, metrics=["loss"], sets="heads")
    assert small["heads"].tolist() == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]


def test_sets_over_layers_donors_positions_and_parts_reach_the_table(small_model, repeating_batch):
    """Every argument is handed on: the numbers are those of the sweep, and attrs tell which."""
    donors = head_donors(small_model, TASK.sample(8, seed=0, split="reference"), name="eight")
    sets = [[[1, 2], [0, 1]], [[1, 0], [1, 1]]]
    ablation = Ablation(mode="resample", donors=donors, value=0.25, positions=(7, 8))
    frame = ablation_sweep(
        small_model,
        repeating_batch,
        ablation,
        sets=sets,
        metrics=["margin", "kl"],
        seed=5,
    )
    swept = sweep_sets(
        small_model, repeating_batch, sets, ablation=ablation, metrics=["margin", "kl"]
    )
    assert frame["heads"].tolist() == ["L0H1,L1H2"] * 2 + ["L1H0,L1H1"] * 2
    assert frame["layer"].tolist() == [0, 0, 1, 1]
    assert frame["head"].isna().all()
    assert frame["metric"].tolist() == ["margin", "kl"] * 2
    assert frame["unit"].tolist() == ["logit", "nats"] * 2
    assert frame["delta"].tolist() == swept.deltas(seed=5).delta.flatten().tolist()
    assert frame["ci_high"].tolist() == swept.deltas(seed=5).ci_high.flatten().tolist()
    assert frame.attrs["reference"] == "eight"
    assert frame.attrs["ablation"] == {
        "mode": "resample",
        "value": 0.25,
        "positions": [7, 8],
        "fill": "eight",
        "fill_sha256": donors.sha256,
        "n_donors": 8,
    }
    with pytest.raises(ValueError, match=r"a set of heads must be at least one .* pair, got none"):
        ablation_sweep(small_model, repeating_batch, sets=[()])
