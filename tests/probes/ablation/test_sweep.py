"""The sweep against a loop of hooks that do the same by hand, for every kind of model and gap."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.special
import torch

from lab.gates import Donors, HeadGates, Reference
from lab.tasks.base import Batch
from probes.ablation import sweep_passes as sweep_runs
from probes.ablation.metrics import METRICS
from probes.ablation.sweep import Ablation, sweep_sets
from probes.ablation.table import head_donors, mean_reference
from probes.execution import Execution
from probes.pruning.removing import prune_heads

KINDS = {
    "LN": {},
    "RMS": {"normalization_type": "RMS", "gated_mlp": True, "act_fn": "silu"},
    "rotary": {"positional_embedding_type": "rotary"},
    "grouped-query": {
        "n_heads": 4,
        "n_key_value_heads": 2,
        "positional_embedding_type": "rotary",
        "rotary_dim": 2,
    },
    "attn_only": {"attn_only": True},
    "parallel": {"parallel_attn_mlp": True, "positional_embedding_type": "rotary"},
}
SETS = (
    ((0, 1),),
    ((1, 0),),
    ((2, 2),),
    ((0, 0), (0, 2)),
    ((0, 1), (2, 0)),
    ((1, 1), (2, 1), (2, 2)),
)
NAMES = tuple(metric.name for metric in METRICS)


def tokens_of(n: int, length: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randint(6, (n, length), generator=torch.Generator().manual_seed(seed))


@dataclass
class ByHand:
    """What the sweep should give, from hooks and plain arithmetic."""

    model: object
    tokens: torch.Tensor
    rows: torch.Tensor
    ablation: Ablation
    mask: torch.Tensor | None = None

    def logits(self, heads, fill):
        """Run the model with hooks that write into z."""

        def edit(z, hook):
            layer = int(hook.name.split(".")[1])
            z = z.clone()
            for at, head in heads:
                if at == layer:
                    gap = torch.zeros_like(z[:, :, 0]) if fill is None else fill[layer, :, head]
                    new = self.ablation.value * z[:, :, head] + (1 - self.ablation.value) * gap
                    where = self.ablation.positions or range(z.shape[1])
                    z[:, list(where), head] = new[:, list(where)]
            return z

        hooks = [(f"blocks.{layer}.attn.hook_z", edit) for layer in {at for at, _ in heads}]
        return self.model.run_with_hooks(
            self.tokens, fwd_hooks=hooks, attention_mask=self.mask
        ).double()

    @functools.cached_property
    def whole(self):
        return self.logits((), None)

    def means(self, heads):
        """Return every metric, averaged over the fills."""
        whole, found = self.whole, []
        for fill in self.fills():
            logits = self.logits(heads, fill)
            numbers = [self.numbers(logits[i], whole[i], i) for i in range(len(self.tokens))]
            loss, right, margin, kl = np.concatenate(numbers, axis=1).mean(axis=1)
            exact = np.mean([each[1].all() for each in numbers])
            found.append([loss, right, exact, margin, kl])
        return np.mean(found, axis=0)

    def fills(self):
        if self.ablation.mode == "zero":
            return [None]
        if self.ablation.mode == "mean":
            return [self.ablation.reference.z]
        return list(self.ablation.donors.z)

    def numbers(self, logits, whole, i):
        """Return loss, right, margin and divergence of the scored rows of one sequence."""
        rows = self.rows[i].nonzero().flatten()
        answers = self.tokens[i, rows + 1].numpy()
        logits, whole = logits[rows].detach().numpy(), whole[rows].detach().numpy()
        p_now, p_whole = (scipy.special.softmax(each, axis=1) for each in (logits, whole))
        at = (np.arange(len(rows)), answers)
        others = logits.copy()
        others[at] = -np.inf
        return np.stack(
            [
                -np.log(p_now[at]),
                logits.argmax(axis=1) == answers,
                logits[at] - others.max(axis=1),
                (p_whole * np.log(p_whole / p_now)).sum(axis=1),
            ]
        )


@pytest.fixture(scope="module")
def gaps():
    """Every mode, with fills of random z: a gap filled with the wrong head or position shows."""

    def made(model):
        config, generator = model.config, torch.Generator().manual_seed(7)
        shape = (config.n_layers, 9, config.n_heads, config.head_width)
        z = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
        reference = Reference(name="random", sha256="0" * 64, z=z[0])
        donors = Donors(name="random", sha256="0" * 64, z=z[1:])
        return [
            Ablation(),
            Ablation(mode="mean", reference=reference),
            Ablation(mode="resample", donors=donors),
            Ablation(mode="mean", reference=reference, value=0.3, positions=(2, 5)),
        ]

    return made


@pytest.mark.parametrize("kind", KINDS)
def test_every_mode_equals_a_loop_of_hooks(build_model, gaps, kind):
    model = build_model(n_layers=3, **KINDS[kind])
    tokens = tokens_of(3)
    rows = torch.zeros_like(tokens, dtype=torch.bool)
    rows[0, 3:7], rows[1, 5], rows[2, 4:8] = True, True, True
    batch = Batch(tokens, rows, torch.full((3, 9, 1), -1))
    for ablation in gaps(model):
        by_hand = ByHand(model, tokens, rows, ablation)
        swept = sweep_sets(model, batch, SETS, ablation=ablation, metrics=NAMES)
        wanted = np.stack([by_hand.means(heads) for heads in ((), *SETS)])
        np.testing.assert_allclose(swept.means(), wanted, atol=1e-10, rtol=0)
        single = sweep_sets(model.float(), batch, SETS, ablation=ablation, metrics=NAMES)
        model.double()
        np.testing.assert_allclose(single.means(), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_padded_sequences_equal_a_loop_of_hooks(build_model, direction):
    model = build_model(n_layers=3, attention_dir=direction, positional_embedding_type="rotary")
    tokens, mask = tokens_of(2), torch.ones(2, 9, dtype=torch.bool)
    mask[0, :3], mask[1, 6:] = False, False
    ablation = Ablation(value=0.5)
    swept = sweep_sets(
        model, tokens, SETS, ablation=ablation, metrics=NAMES, attention_mask=mask.long()
    )
    rows = mask & mask.roll(-1, 1)
    rows[:, -1] = False
    by_hand = ByHand(model, tokens, rows, ablation, mask)
    wanted = np.stack([by_hand.means(heads) for heads in ((), *SETS)])
    np.testing.assert_allclose(swept.means(), wanted, atol=1e-10, rtol=0)
    assert swept.counts[:, 0].tolist() == rows.sum(1).tolist()


def test_heads_own_value_changes_nothing(small_model):
    tokens = tokens_of(1)
    donors = head_donors(small_model, tokens, name="itself")
    _, cache = small_model.run_with_cache(tokens)
    for layer in range(2):
        torch.testing.assert_close(donors.z[0, layer], cache["z", layer][0], atol=1e-12, rtol=0)
    ablation = Ablation(mode="resample", donors=donors)
    swept = sweep_sets(small_model, tokens, SETS[:2], ablation=ablation, metrics=NAMES)
    np.testing.assert_allclose(swept.deltas().delta, 0.0, atol=1e-12)
    kept = sweep_sets(small_model, tokens, SETS[:2], ablation=Ablation(value=1.0), metrics=NAMES)
    assert (kept.totals == kept.totals[:, :1]).all()


def test_patterns_up_to_the_ablated_layer_keep_their_bits(build_model):
    model, tokens = build_model(n_layers=3), tokens_of(2)
    _, whole = model.run_with_cache(tokens)
    gates = HeadGates.ablate([(1, 0)], like=model)
    _, cache = model.run_with_cache(tokens, gates=gates)
    for layer in range(3):
        for name in ("attn_scores", "pattern"):
            same = torch.equal(cache[name, layer], whole[name, layer])
            assert same == (layer <= 1), (name, layer)


@pytest.mark.parametrize("kind", KINDS)
def test_pruned_model_with_an_empty_layer_speaks_original_ids(build_model, kind):
    """Uneven layers, and one without heads, swept as the gated original is."""
    model, tokens = build_model(n_layers=3, **KINDS[kind]), tokens_of(2)
    everything = [(1, head) for head in range(model.config.n_heads)]
    gone = ((0, 1), *everything, (2, 0))
    pruned = prune_heads(model, gone)
    sets = [((0, 0),), ((0, 2), (2, 1)), ((2, 2),)]
    small = sweep_sets(pruned, tokens, sets, metrics=NAMES[:4])
    big = sweep_sets(model, tokens, [gone, *((*gone, *heads) for heads in sets)], metrics=NAMES[:4])
    np.testing.assert_allclose(small.means(), big.means()[1:], atol=1e-10)


def test_hooks_have_their_say(small_model):
    """A hook can do anything anywhere: then every set runs through the whole model."""

    def louder(residual, hook):
        assert len(residual) == 2
        return 2.0 * residual

    tokens, sets = tokens_of(2), [((0, 1),), ((1, 0), (1, 2))]
    with small_model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", louder)]):
        hooked = sweep_sets(small_model, tokens, sets, metrics=["loss"])
        for run, heads in enumerate([(), *sets]):
            gates = HeadGates.ablate(heads, like=small_model)
            loss = small_model(tokens, "loss", gates=gates).item()
            assert hooked.means()[run, 0] == pytest.approx(loss, abs=1e-12)
    plain = sweep_sets(small_model, tokens, sets, metrics=["loss"])
    assert np.abs(plain.means() - hooked.means()).min() > 1e-3


def test_what_changes_nothing_does_not_run(build_model, monkeypatch):
    """Equal sets run once, silent heads not at all, unless their set goes on above."""
    model, runs = build_model(), []
    edited_rows = sweep_runs.edited_rows
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] = 0.0

    def counted(whole, layer, edits, gates=None):
        runs.append((layer, len(edits)))
        return edited_rows(whole, layer, edits, gates)

    monkeypatch.setattr(sweep_runs, "edited_rows", counted)
    sets = [((0, 1),), ((0, 0), (1, 1)), ((1, 1), (0, 0)), ((0, 1), (1, 2)), ((1, 0),), ()]
    swept = sweep_sets(model, tokens_of(2), sets)
    assert sorted(runs) == [(0, 2), (1, 1)]
    assert (swept.totals[:, 1] == swept.totals[:, 0]).all()
    assert (swept.totals[:, 6] == swept.totals[:, 0]).all()
    assert (swept.totals[:, 2] == swept.totals[:, 3]).all()
    assert swept.sets[2] == ((0, 0), (1, 1))


def test_little_memory_changes_no_number(build_model):
    model, tokens = build_model(n_layers=3), tokens_of(5)
    told = []
    whole = sweep_sets(model, tokens, SETS, metrics=NAMES)
    pieces = sweep_sets(
        model,
        tokens,
        SETS,
        metrics=NAMES,
        execution=Execution(memory=1, progress=lambda *at: told.append(at)),
    )
    np.testing.assert_allclose(pieces.totals, whole.totals, atol=1e-12)
    assert told[-1] == (35, 35)  # six sets and the whole model, five times
    assert len(told) == 35


def test_model_is_left_as_it_was(build_model):
    model = build_model().train()
    model.blocks[0].attn.W_Q.requires_grad_(False)
    model.W_E.grad = torch.ones_like(model.W_E)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    swept = sweep_sets(model, tokens_of(2), SETS[:2])
    assert model.training
    assert not model.blocks[0].attn.W_Q.requires_grad
    assert model.W_E.requires_grad
    assert (model.W_E.grad == 1).all()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert torch.is_grad_enabled()
    assert swept.totals.dtype == np.float64


def test_interval_is_of_the_paired_difference(small_model):
    """Sequences differ far more than what a head changes in each: pairing shows in the width."""
    swept = sweep_sets(small_model, tokens_of(12), [((1, 1),)], metrics=["loss"])
    found = swept.deltas(seed=3)
    changes = swept.totals[:, 1, 0] - swept.totals[:, 0, 0]
    generator = np.random.default_rng(3)
    draws = generator.multinomial(12, np.full(12, 1 / 12), size=2_000)
    means = draws @ changes / (draws @ swept.counts[:, 0])
    assert found.delta[0, 0] == pytest.approx(changes.sum() / swept.counts[:, 0].sum())
    assert found.ci_low[0, 0] == pytest.approx(np.quantile(means, 0.025))
    assert found.ci_high[0, 0] == pytest.approx(np.quantile(means, 0.975))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sets": [((0, 7),)]}, r"unknown head 'L0H7'; choose from L0H0"),
        ({"metrics": ()}, "metrics must be at least one name or function, got none"),
        ({"positions": (99,)}, "a position must be below n_ctx = 16, got 99"),
        ({"value": 1.5}, "value must be a number from 0 to 1, got 1.5"),
        ({"mode": "mean"}, r"reference must be given for mode 'mean', got None; pass"),
        ({"mode": "resample"}, r"donors must be given for mode 'resample', got None; pass"),
        ({"positions": (3, 12)}, "positions must be below the 9 tokens of a sequence, got 12"),
        ({"positions": ()}, "positions must be at least one, got none; None takes all of them"),
        ({"mode": "off"}, r"unknown ablation mode 'off'; choose from mean, resample, zero"),
    ],
)
def test_wrong_requests_are_refused(small_model, wrong, message):
    chosen = {name: wrong.pop(name) for name in ("mode", "value", "positions") if name in wrong}
    with pytest.raises(ValueError, match=message):
        sweep_sets(
            small_model,
            tokens_of(2),
            wrong.pop("sets", SETS[:1]),
            ablation=Ablation(**chosen),
            **wrong,
        )


def test_what_fills_the_gap_must_be_of_its_kind_and_fit(as_a_user, small_model, build_model):
    mean, donors = mean_reference(small_model, tokens_of(3)), head_donors(small_model, tokens_of(3))
    for wrong, message in (
        ({"mode": "mean", "reference": donors}, "reference must be Reference, got Donors; mean_"),
        ({"mode": "resample", "donors": mean}, "donors must be Donors, got Reference; mean_"),
        ({"reference": mean}, "reference must be None for mode 'zero', got Ref.* mode='mean'"),
        ({"mode": "mean", "reference": mean, "donors": donors}, "donors must be None for mode 'me"),
    ):
        with pytest.raises(ValueError, match=message):
            Ablation(**wrong)
    for other in (build_model(d_head=5), build_model(n_layers=1), build_model(n_heads=4)):
        foreign = Ablation(mode="mean", reference=mean_reference(other, tokens_of(3)))
        with pytest.raises(ValueError, match=r"come from a model .* \(2, 3, 4\), got \(.*compute"):
            sweep_sets(small_model, tokens_of(2), SETS[:1], ablation=foreign)
    short = Ablation(mode="resample", donors=head_donors(small_model, tokens_of(3, length=8)))
    with pytest.raises(ValueError, match="must cover every position, got 8 for sequences of 9; ta"):
        sweep_sets(small_model, tokens_of(2), SETS[:1], ablation=short)


def test_sequences_without_a_scored_row_are_left_out(build_model):
    """They are neither right nor wrong, and no sequence of an interval."""
    model, tokens = build_model(), tokens_of(6)
    rows = torch.ones_like(tokens, dtype=torch.bool)
    rows[:, :-3] = rows[:, -1] = False  # two a sequence, some of which are right
    sources = torch.full_like(tokens, -1).unsqueeze(2)
    only = sweep_sets(model, Batch(tokens[:4], rows[:4], sources[:4]), SETS[:2])
    rows[4:] = False
    swept = sweep_sets(model, Batch(tokens, rows, sources), SETS[:2])
    np.testing.assert_allclose(swept.means(), only.means(), rtol=1e-12)
    assert (swept.n_sequences, only.n_sequences) == (4, 4)
    assert only.means()[0, 2] < 1
    for end in ("ci_low", "ci_high"):
        ours, theirs = (getattr(each.deltas(), end) for each in (swept, only))
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    nothing = sweep_sets(model, Batch(tokens, rows & False, sources), SETS[:1])
    assert np.isnan(nothing.means()).all()
    assert nothing.n_sequences == 0


def test_a_sequence_has_room_in_the_model_or_is_refused(small_model):
    sweep_sets(small_model, tokens_of(1, length=16), [])
    for length in (17, 30):
        with pytest.raises(ValueError, match=rf"must have 1 to n_ctx = 16 tokens, got {length}"):
            sweep_sets(small_model, tokens_of(1, length=length), [])


def test_answers_that_the_model_cannot_say_are_refused(build_model):
    model = build_model(d_vocab_out=4)
    with pytest.raises(
        ValueError, match=r"d_vocab_out must be above every answer, got 4 for .* 5;"
    ):
        sweep_sets(model, tokens_of(2), [])
