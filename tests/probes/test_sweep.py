"""The sweep against a loop of hooks that do the same by hand, for every kind of model and gap."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.special
import torch

from lab.gates import Donors, Reference
from lab.tasks.base import Batch
from probes.metrics import METRICS
from probes.sweep import Ablation, sweep_sets

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


@dataclass(frozen=True)
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

    def means(self, heads):
        """Return every metric, averaged over the fills."""
        whole, found = self.logits((), None), []
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
    generator = torch.Generator().manual_seed(7)

    def made(model):
        config = model.config
        shape = (config.n_layers, 9, config.n_heads, config.head_width)
        z = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
        reference = Reference(name="random", sha256="0" * 64, z=z[0])
        donors = Donors(name="random", sha256="0" * 64, z=z[1:])
        return [
            Ablation(),
            Ablation(mode="mean", reference=reference),
            Ablation(mode="resample", donors=donors),
            Ablation(mode="mean", reference=reference, value=0.25, positions=(2, 5)),
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
        np.testing.assert_allclose(single.means(), wanted, atol=2e-5, rtol=0)


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
