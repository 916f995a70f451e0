"""Direct and total effects by hooks, with the last norm's scale frozen by a hook and free."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lab.gates import Donors, Reference
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.ablation.sweep import Ablation
from probes.ablation.table import ablation_sweep, head_donors, mean_reference
from probes.execution import Execution
from probes.first_order.self_repair import repair_split
from probes.planted import PlantedHead, plant
from probes.pruning.removing import prune_heads
from probes.schemas.first_order import SELF_REPAIR

TASK = get_task("reversal", length=6, n_symbols=4)


def loss_of(logits: torch.Tensor, batch: Batch) -> float:
    targets = batch.tokens.roll(-1, 1)[batch.loss_mask]
    return F.cross_entropy(logits[batch.loss_mask], targets).item()


def paths_by_hooks(
    model: HookedGPT, batch: Batch, layer: int, head: int, fill: torch.Tensor
) -> dict[str, tuple[float, float]]:
    """Return how much the loss rises directly and in total, by norm."""
    _, cache = model.run_with_cache(batch.tokens)
    clean = loss_of(model(batch.tokens), batch)
    stream, n_layers = cache["resid_post", model.config.n_layers - 1], model.config.n_layers
    place = model.config.heads_of(layer).index(head)
    written = cache["z", layer][:, :, place] - fill
    edited = stream - written @ model.blocks[layer].attn.W_O[place]

    def exchange(z, hook):
        z[:, :, place] = fill

    def keep_scale(scale, hook):
        return cache["ln_final.hook_scale"]

    has_norm = "ln_final.hook_scale" in cache
    found = {}
    for norm in ("free", "frozen"):
        hooks = [("ln_final.hook_scale", keep_scale)] if norm == "frozen" and has_norm else []
        with model.hooks(fwd_hooks=hooks):
            direct = loss_of(model(edited, start_at_layer=n_layers), batch)
        with model.hooks(fwd_hooks=[*hooks, (f"blocks.{layer}.attn.hook_z", exchange)]):
            total = loss_of(model(batch.tokens), batch)
        found[norm] = direct - clean, total - clean
    return found


def test_equal_to_hooks(any_model, repeating_batch):
    reference = mean_reference(any_model, TASK.sample(7, seed=0, split="reference"))
    frame = repair_split(
        any_model,
        repeating_batch,
        ablation=Ablation(mode="mean", reference=reference),
        metrics=["loss"],
    )
    assert frame.columns.tolist() == SELF_REPAIR.names
    assert frame["norm"].tolist() == ["free", "frozen"] * 6
    for row in frame.itertuples():
        fill = reference.z[row.layer, :, row.head]
        paths = paths_by_hooks(any_model, repeating_batch, row.layer, row.head, fill)
        direct, total = paths[row.norm]
        assert row.direct == pytest.approx(direct, abs=1e-12)
        assert row.total == pytest.approx(total, abs=1e-12)
        assert row.repair == pytest.approx(direct - total, abs=1e-12)
        assert row.ci_low <= row.repair <= row.ci_high
    free, frozen = (frame[frame["norm"] == norm] for norm in ("free", "frozen"))
    apart = np.abs(free["direct"].to_numpy() - frozen["direct"].to_numpy()).max()
    assert (apart > 1e-3) == (any_model.config.normalization_type is not None)
    ablation = Ablation(mode="mean", reference=reference)
    sweep = ablation_sweep(any_model, repeating_batch, ablation, metrics=["loss"])
    exact = sweep[sweep["head"].notna()]["delta"]
    np.testing.assert_allclose(free["total"], exact, atol=1e-12)


def test_nothing_follows_the_last_heads(any_model, repeating_batch):
    """With no MLP behind them, or beside them, their direct effect is all there is."""
    frame = repair_split(any_model, repeating_batch)
    last = frame[frame["layer"] == 1]["repair"]
    alone = any_model.config.attn_only or any_model.config.parallel_attn_mlp
    assert (last.abs().max() < 1e-12) == alone
    assert frame[frame["layer"] == 0]["repair"].abs().max() > 1e-3


def test_margins_fall_and_losses_rise(small_model, repeating_batch):
    """An effect counts how much worse it gets, whichever way the metric points."""
    frame = repair_split(small_model, repeating_batch, metrics=["margin", "loss", "exact_match"])
    sweep = ablation_sweep(small_model, repeating_batch, metrics=["margin", "loss", "exact_match"])
    free = frame[frame["norm"] == "free"]
    for metric, sign in (("margin", -1), ("loss", 1), ("exact_match", -1)):
        exact = sweep[sweep["head"].notna() & (sweep["metric"] == metric)]["delta"]
        found = free[free["metric"] == metric]["total"]
        np.testing.assert_allclose(found, sign * exact, atol=1e-12)


def test_a_backup_head_is_seen():
    """The primary writes nothing that is said; its backup says the answer once it is gone."""
    idle = PlantedHead(kind="uniform", writes="nothing")
    planted = plant(
        [
            [PlantedHead(kind="previous"), idle],
            [PlantedHead(kind="backup", primary=0, beta=30.0, writes="copy"), idle],
        ]
    )
    tokens = torch.tensor([[2, 3] * 7, [4, 5] * 7])  # the answer is the token before
    frame = repair_split(planted.model, tokens, [[(0, 0)]], metrics=["margin"])
    row = frame[frame["norm"] == "free"].iloc[0]
    assert row["direct"] == pytest.approx(0.0, abs=1e-6)
    assert row["total"] < -0.5
    assert row["repair"] > 0.5


def test_sets_over_layers_and_donors(small_model, repeating_batch):
    """A set's direct effect is of all that its heads write; donors' effects are averaged."""
    donors = head_donors(small_model, TASK.sample(2, seed=0, split="reference"))
    assert isinstance(donors, Donors)
    heads = ((0, 1), (1, 0), (1, 2))

    def split(ablation: Ablation) -> np.ndarray:
        frame = repair_split(
            small_model, repeating_batch, [heads, [(1, 1)]], ablation=ablation, metrics=["loss"]
        )
        assert frame["heads"].tolist() == ["L0H1,L1H0,L1H2"] * 2 + ["L1H1"] * 2
        assert frame["head"].isna().tolist() == [True, True, False, False]
        return frame[["direct", "total", "repair"]].to_numpy()

    one, two = (split(Ablation(mode="mean", reference=each)) for each in donors.references())
    both = split(Ablation(mode="resample", donors=donors))
    np.testing.assert_allclose(both, (one + two) / 2, atol=1e-12)
    _, cache = small_model.run_with_cache(repeating_batch.tokens)
    stream = cache["resid_post", 1]
    for layer, head in heads:
        write = cache["z", layer][:, :, head] - donors.z[0, layer, :, head]
        stream = stream - write @ small_model.blocks[layer].attn.W_O[head]
    edited = loss_of(small_model(stream, start_at_layer=2), repeating_batch)
    clean = loss_of(small_model(repeating_batch.tokens), repeating_batch)
    assert one[0, 0] == pytest.approx(edited - clean, abs=1e-12)


def test_pieces_padding_and_original_ids(build_model, repeating_batch):
    model = prune_heads(build_model(), [(0, 0)])
    whole = repair_split(model, repeating_batch)
    assert whole["heads"].unique().tolist() == ["L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    steps = []
    pieces = repair_split(
        model,
        repeating_batch,
        execution=Execution(memory=1, progress=lambda done, total: steps.append((done, total))),
    )
    numbers = ["direct", "total", "repair"]
    np.testing.assert_allclose(pieces[numbers], whole[numbers], atol=1e-12)
    assert steps[-1][0] == steps[-1][1] == len(repeating_batch) * 6
    padded = Batch(
        F.pad(repeating_batch.tokens, (2, 0)),
        F.pad(repeating_batch.loss_mask, (2, 0)),
        F.pad(repeating_batch.sources, (0, 0, 2, 0)),
    )
    real = F.pad(torch.ones_like(repeating_batch.loss_mask), (2, 0))
    left = repair_split(model, padded, attention_mask=real)
    np.testing.assert_allclose(left[numbers], whole[numbers], atol=1e-12)


def test_a_head_that_writes_what_fills_its_gap_has_no_effect(build_model, repeating_batch):
    model = build_model()
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] = 0.0
    frame = repair_split(model, repeating_batch)
    idle = frame[frame["heads"] == "L0H1"]
    assert (idle[["direct", "total", "repair", "ci_low", "ci_high"]] == 0).to_numpy().all()


def test_wrong_requests_are_refused(build_model, repeating_batch):
    model = build_model()
    with pytest.raises(ValueError, match=r"unknown head 'L2H0'; choose from L0H0"):
        repair_split(model, repeating_batch, [[(2, 0)]])
    with pytest.raises(ValueError, match=r"a set of heads must be at least one \(layer, head\)"):
        repair_split(model, repeating_batch, [[]])
    with pytest.raises(ValueError, match="unknown metric 'logit'"):
        repair_split(model, repeating_batch, metrics=["logit"])
    with (
        model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: z)]),
        pytest.raises(ValueError, match=r"plain HookedGPT without hooks, got one with hooks"),
    ):
        repair_split(model, repeating_batch)
    wide = Reference(name="x", sha256="0", z=torch.zeros(2, 3, 3, 4))
    with pytest.raises(ValueError, match="must cover every position, got 3"):
        repair_split(model, repeating_batch, ablation=Ablation(mode="mean", reference=wide))


def test_nothing_scored_has_no_numbers_and_no_warning(build_model, repeating_batch):
    nothing = dataclasses.replace(
        repeating_batch, loss_mask=torch.zeros_like(repeating_batch.loss_mask)
    )
    frame = repair_split(build_model(), nothing)
    assert frame[["baseline", "direct", "total", "repair"]].isna().all(axis=None)
