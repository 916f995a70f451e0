"""First-order estimates against hooks, exact ablations in the limit, loops and sharp heads."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lab.gates import HeadGates, Reference
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.ablation.sweep import Ablation, sweep_sets
from probes.ablation.table import head_donors, mean_reference
from probes.first_order.attribution_patching import NODES, estimated_ablations, estimated_patches
from probes.first_order.importance import head_importance
from probes.planted import PlantedHead, plant
from probes.pruning.removing import prune_heads
from probes.schemas.first_order import ESTIMATES

TASK = get_task("reversal", length=6, n_symbols=4)
HEADS = list(itertools.product(range(2), range(3)))


def z_and_gradient(model: HookedGPT, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return z and dL/dz of every head, [layer, batch, pos, head, d_head], by hooks."""
    kept = []
    hooks = [(f"blocks.{layer}.attn.hook_z", lambda z, hook: kept.append(z)) for layer in range(2)]
    with model.hooks(fwd_hooks=hooks):
        logits = model(batch.tokens)
    targets = batch.tokens.roll(-1, 1)[batch.loss_mask]
    loss = F.cross_entropy(logits[batch.loss_mask], targets)
    return torch.stack(kept).detach(), torch.stack(torch.autograd.grad(loss, kept))


@pytest.fixture(scope="module")
def fills(any_model):
    """A mean of each position, one over all, and three donors."""
    others = TASK.sample(3, seed=0, split="reference")
    return {
        "mean": mean_reference(any_model, others),
        "level": mean_reference(any_model, others, per_position=False),
        "donors": head_donors(any_model, others),
    }


def test_zero_is_minus_the_gradient_of_the_gate(any_model, repeating_batch):
    frame = estimated_ablations(any_model, repeating_batch)
    assert frame.columns.tolist() == ESTIMATES.names
    importance = head_importance(any_model, repeating_batch)
    np.testing.assert_allclose(frame["estimate"], -importance["gradient"], atol=1e-14)
    z, gradient = z_and_gradient(any_model, repeating_batch)
    by_hooks = -(z * gradient).sum((1, 2, 4)).flatten()
    np.testing.assert_allclose(frame["estimate"], by_hooks, atol=1e-12)
    single = estimated_ablations(copy.deepcopy(any_model).float(), repeating_batch)
    size = (z * gradient).abs().sum((1, 2, 4)).max().item()  # of what cancels in the sum
    np.testing.assert_allclose(single["estimate"], by_hooks, rtol=0, atol=1e-6 * max(1.0, size))


def test_fills_positions_and_parts(any_model, repeating_batch, fills):
    z, gradient = z_and_gradient(any_model, repeating_batch)
    mean, level, donors = fills["mean"], fills["level"], fills["donors"]
    cases = [
        (Ablation(mode="mean", reference=mean), mean.z.unsqueeze(1) - z),
        (Ablation(mode="mean", reference=level), level.z.unsqueeze(1) - z),
        (Ablation(mode="resample", donors=donors), (donors.z.unsqueeze(2) - z).mean(0)),
        (Ablation(value=0.75), -0.25 * z),
    ]
    for ablation, change in cases:
        frame = estimated_ablations(any_model, repeating_batch, ablation)
        exact = (change * gradient).sum((1, 2, 4)).flatten()
        np.testing.assert_allclose(frame["estimate"], exact, atol=1e-12)
        assert frame["mode"].unique().tolist() == [ablation.mode]
    frame = estimated_ablations(any_model, repeating_batch, Ablation(positions=(0, 7)))
    exact = -(z * gradient)[:, :, [0, 7]].sum((1, 2, 4)).flatten()
    np.testing.assert_allclose(frame["estimate"], exact, atol=1e-12)


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
def test_limit_of_the_exact_sweep(small_model, repeating_batch, mode):
    """Closing the gate by 1e-5 changes the loss by 1e-5 times the estimate."""
    others = TASK.sample(3, seed=0, split="reference")
    filled = {}
    if mode == "mean":
        filled = {"reference": mean_reference(small_model, others)}
    elif mode == "resample":
        filled = {"donors": head_donors(small_model, others)}
    estimates = estimated_ablations(small_model, repeating_batch, Ablation(mode=mode, **filled))
    nearly = Ablation(mode=mode, value=1.0 - 1e-5, **filled)
    swept = sweep_sets(
        small_model, repeating_batch, [[head] for head in HEADS], ablation=nearly, metrics=["loss"]
    )
    slope = swept.deltas().delta[:, 0] * 1e5
    np.testing.assert_allclose(estimates["estimate"], slope, rtol=2e-3, atol=1e-4)


def test_two_ways_of_zero_ablation_with_value_biases(any_model, repeating_batch):
    """Zeroing z takes b_V W_O with it, unless it was folded into b_O: then zero means b_V.

    TransformerLens folds value biases by default.
    """
    batch, config = repeating_batch, any_model.config
    folded = HookedGPT(config).double()
    folded.load_state_dict(any_model.state_dict())
    constant = torch.zeros(2, 1, 3, config.head_width, dtype=torch.float64)
    with torch.no_grad():
        for layer, block in enumerate(folded.blocks):
            attn = block.attn
            for head in range(3):
                constant[layer, 0, head] = attn.b_V[config.kv_head(head)]
            attn.b_O += torch.einsum("hd,hdm->m", constant[layer, 0], attn.W_O)
            attn.b_V.zero_()
    torch.testing.assert_close(folded(batch.tokens), any_model(batch.tokens))
    bias = Reference(name="b_V", sha256="0", z=constant)
    sets = [[head] for head in HEADS]

    def exact(model: HookedGPT, ablation: Ablation) -> np.ndarray:
        return sweep_sets(model, batch, sets, ablation=ablation, metrics=["loss"]).means()[1:, 0]

    def estimate(model: HookedGPT, ablation: Ablation) -> np.ndarray:
        return estimated_ablations(model, batch, ablation)["estimate"].to_numpy()

    for measure in (exact, estimate):
        plain, kept = measure(any_model, Ablation()), measure(folded, Ablation())
        assert np.abs(plain - kept).max() > 1e-2
        with_bias = measure(any_model, Ablation(mode="mean", reference=bias))
        np.testing.assert_allclose(kept, with_bias, atol=1e-12)
    # A mask on the attention, as head masks were, zeroes z too: the bias goes with it.
    (layer, head), whole = HEADS[-1], exact(any_model, Ablation())

    def mask(pattern, hook):
        pattern[:, head] = 0.0
        return pattern

    logits = any_model.run_with_hooks(
        batch.tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_pattern", mask)]
    )
    targets = batch.tokens.roll(-1, 1)[batch.loss_mask]
    masked = F.cross_entropy(logits[batch.loss_mask], targets).item()
    assert whole[-1] == pytest.approx(masked, abs=1e-12)


def test_grad_drop_is_the_mean_over_layers_without_a_path(build_model, repeating_batch):
    """Against a pass of its own for each layer whose update is cut out of the graph."""
    model = build_model(n_layers=3)
    frame = estimated_ablations(model, repeating_batch, grad_drop=True)
    targets = repeating_batch.tokens.roll(-1, 1)[repeating_batch.loss_mask]
    total = 0.0
    for dropped in range(3):
        kept = []
        hooks = [
            (f"blocks.{layer}.attn.hook_z", lambda z, hook, kept=kept: kept.append(z))
            for layer in range(3)
        ]
        with model.hooks(fwd_hooks=hooks):
            residual = model(repeating_batch.tokens, stop_at_layer=0)
            for layer in range(3):
                out = model(residual, start_at_layer=layer, stop_at_layer=layer + 1)
                update = out - residual
                residual = residual + (update.detach() if layer == dropped else update)
            logits = model(residual, start_at_layer=3)
        loss = F.cross_entropy(logits[repeating_batch.loss_mask], targets)
        gradients = torch.autograd.grad(loss, kept, allow_unused=True, materialize_grads=True)
        per_example = [(z * g).sum((1, 3)) for z, g in zip(kept, gradients, strict=True)]
        assert (per_example[dropped] == 0).all()
        total = total + torch.stack(per_example).abs().sum(1).detach() / 2
    np.testing.assert_allclose(frame["grad_drop"], total.flatten(), atol=1e-12)
    assert estimated_ablations(model, repeating_batch)["grad_drop"].isna().all()


def rebuilt_z(model, cache, other, node, share=1.0):
    """Return z of every head with q, k or v moved towards another run, in loops over heads."""
    rotary = model.config.rotary_width > 0
    found = []
    for layer in range(2):
        names = {"q": "rot_q" if rotary else "q", "k": "rot_k" if rotary else "k", "v": "v"}
        heads = []
        for head in range(3):
            place = {"q": head, "k": model.config.kv_head(head), "v": model.config.kv_head(head)}
            parts = {}
            for part, name in names.items():
                own = cache[f"blocks.{layer}.attn.hook_{name}"][:, :, place[part]]
                foreign = other[f"blocks.{layer}.attn.hook_{name}"][:, :, place[part]]
                parts[part] = own + share * (foreign - own) if part == node else own
            scores = parts["q"] @ parts["k"].mT / math.sqrt(model.config.head_width)
            hidden = torch.ones(scores.shape[1:]).triu(1).bool()
            heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ parts["v"])
        found.append(torch.stack(heads, dim=2))
    return torch.stack(found)


def test_exchanged_activations_in_loops(any_model, repeating_batch):
    """Recomputed: z of the exchanged parts; linear: its slope, by central differences."""
    other = TASK.sample(5, seed=3, split="reference")
    z, gradient = z_and_gradient(any_model, repeating_batch)
    _, cache = any_model.run_with_cache(repeating_batch.tokens)
    _, foreign = any_model.run_with_cache(other.tokens)
    frames = {
        softmax: estimated_patches(any_model, repeating_batch, other, softmax=softmax)
        for softmax in ("recomputed", "linear")
    }
    for node in NODES:
        if node == "z":
            recomputed = linear = torch.stack([foreign["z", layer] for layer in range(2)]) - z
        else:
            recomputed = rebuilt_z(any_model, cache, foreign, node) - z
            ends = [rebuilt_z(any_model, cache, foreign, node, sign * 1e-5) for sign in (1, -1)]
            linear = (ends[0] - ends[1]) / 2e-5
        found = {name: frame[frame["node"] == node] for name, frame in frames.items()}
        for softmax, change in (("recomputed", recomputed), ("linear", linear)):
            exact = (change * gradient).sum((1, 2, 4)).flatten()
            np.testing.assert_allclose(found[softmax]["estimate"], exact, atol=1e-8)
        gap = (found["recomputed"]["estimate"] - found["linear"]["estimate"]).abs().max()
        assert (gap > 1e-4) == (node in "qk")


def test_sharp_heads_need_their_softmax_computed_anew():
    """A head that looks at q - 1 with all its mass: no slope says what other queries would do."""
    planted = plant([[PlantedHead(kind="duplicate", beta=40.0, writes="copy")]], word=6, d_vocab=10)
    task = get_task("reversal", length=6, n_symbols=8)
    batch, other = (task.sample(8, seed=seed, split="test") for seed in (0, 1))
    estimates = {
        softmax: estimated_patches(planted.model, batch, other, ["q"], "loss", softmax=softmax)[
            "estimate"
        ].item()
        for softmax in ("recomputed", "linear")
    }
    assert abs(estimates["recomputed"]) > 0.05
    assert abs(estimates["linear"]) < 1e-6


def test_its_own_activations_change_nothing(small_model, repeating_batch):
    for softmax in ("recomputed", "linear"):
        frame = estimated_patches(small_model, repeating_batch, repeating_batch, softmax=softmax)
        assert len(frame) == 4 * len(HEADS)
        np.testing.assert_allclose(frame["estimate"], 0.0, atol=1e-13)


def test_pieces_and_pruned_heads(small_model, repeating_batch):
    other = TASK.sample(5, seed=3, split="reference")
    whole = estimated_patches(small_model, repeating_batch, other)
    pieces = estimated_patches(small_model, repeating_batch, other, memory=1)
    np.testing.assert_allclose(pieces["estimate"], whole["estimate"], atol=1e-12)
    pruned = prune_heads(small_model, [(0, 0), (1, 0), (1, 1), (1, 2)])
    frame = estimated_patches(pruned, repeating_batch, other)
    assert frame[["layer", "head"]].to_numpy().tolist() == [[0, 1], [0, 2]] * 4
    gates = HeadGates.ablate([(0, 0), (1, 0), (1, 1), (1, 2)], like=small_model)
    assert frame["estimate"].abs().min() > 0
    torch.testing.assert_close(
        pruned(repeating_batch.tokens), small_model(repeating_batch.tokens, gates=gates)
    )


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"nodes": ["w"]}, "unknown node 'w'; choose from k, q, v, z"),
        ({"nodes": []}, r"nodes must be at least one of z, q, k and v, got \(\)"),
        ({"softmax": "frozen"}, "unknown softmax 'frozen'; choose from linear, recomputed"),
        ({"metric": "kl"}, "metric must have a first-order change, got kl"),
    ],
)
def test_wrong_requests_are_refused(small_model, repeating_batch, request_, message):
    with pytest.raises(ValueError, match=message):
        estimated_patches(small_model, repeating_batch, repeating_batch, **request_)
    with pytest.raises(ValueError, match=r"other must have the shape \[5, 14\] of the batch"):
        estimated_patches(small_model, repeating_batch, repeating_batch[:2])
    with pytest.raises(ValueError, match="a position must be below n_ctx = 16, got 16"):
        estimated_ablations(small_model, repeating_batch, Ablation(positions=(16,)))


def test_a_node_named_twice_is_estimated_once(small_model, repeating_batch):
    others = TASK.sample(5, seed=0, split="reference")
    once, twice = (
        estimated_patches(small_model, repeating_batch, others, nodes=nodes)
        for nodes in (["z"], ["z", "z"])
    )
    assert once.equals(twice)


def test_inference_mode_around_it_changes_nothing(small_model, repeating_batch):
    others = TASK.sample(3, seed=0, split="reference")
    fill = {"reference": mean_reference(small_model, others)}
    plain = estimated_ablations(
        small_model, repeating_batch, Ablation(mode="mean", **fill), grad_drop=True
    )
    patched = estimated_patches(small_model, repeating_batch, repeating_batch.tokens.flip(0))
    with torch.inference_mode():
        fill = {"reference": mean_reference(small_model, others)}
        ablation = Ablation(mode="mean", **fill)
        assert estimated_ablations(small_model, repeating_batch, ablation, grad_drop=True).equals(
            plain
        )
        flipped = repeating_batch.tokens.flip(0)
        assert estimated_patches(small_model, repeating_batch, flipped).equals(patched)
