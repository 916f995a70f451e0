"""Gates that learn to be 0 or 1: which heads a model can do without, found by descent.

A gate is drawn from the hard concrete distribution (Louizos et al. 2018), which has lumps of
probability at exactly 0 and exactly 1 and a gradient in between; a penalty on every open gate
closes the heads that are not worth it (Voita et al. 2019). `probes.pruning.orders` decides the
order of removal.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lab.checks import require, require_number, require_seed, require_whole
from lab.evaluation import answer_loss
from lab.gates import GateTensors, Reference
from lab.hooked_gpt import HookedGPT
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.reading.observed_model import as_batch, require_gates
from probes.schemas.cause import GATES
from probes.tables import make_table

TEMPERATURE = 0.33
"""How soft a gate is: at 0 it would be a coin."""
LOW, HIGH = -0.1, 1.1
"""What a soft gate is stretched to before it is clipped to 0 .. 1."""
SMALLEST = 1e-6
"""Draws are uniform from here to 1 less this, so that logarithms are finite."""
WIDE_OPEN = 2.5
"""Where every gate starts: open, but within reach of the penalty."""
TOKENS_A_STEP = 1_024
"""Tokens that one step of learning reads, unless one sequence is longer."""

Gates = Float[Tensor, "*draw head"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedGates:
    """Where every head's gate ended, and on which way."""

    heads: tuple[tuple[int, int], ...]
    """(layer, head) in original ids, the order of the columns below."""
    log_a: Float64[Tensor, " head"]
    """Above 2.4 a gate is exactly 1, below -2.4 exactly 0; see `fixed_gate`."""
    trajectory: Float64[Tensor, "step head"]
    """log_a before each step, and after the last."""
    losses: tuple[float, ...]
    """Loss of the gated model in each step, in nats, without the penalty."""

    @property
    def closed(self) -> tuple[tuple[int, int], ...]:
        """The heads whose fixed gate is exactly 0."""
        gates = fixed_gate(self.log_a).tolist()
        return tuple(pair for pair, g in zip(self.heads, gates, strict=True) if g == 0.0)

    def table(self, every: int = 10) -> pd.DataFrame:
        """Return the way as a table: one row per head and `every` steps, and after the last."""
        last = len(self.losses)
        steps = sorted({*range(0, last, every), last})
        log_a = self.trajectory[steps]
        layer, head = np.array(self.heads).T
        columns = {
            "step": np.repeat(steps, len(self.heads)),
            "layer": np.tile(layer, len(steps)),
            "head": np.tile(head, len(steps)),
            "log_a": log_a.flatten().numpy(),
            "open_probability": open_probability(log_a).flatten().numpy(),
            "gate": fixed_gate(log_a).flatten().numpy(),
            "loss": np.repeat(np.array([*self.losses, math.nan])[steps], len(self.heads)),
        }
        return make_table(columns, GATES, {})


def open_probability(log_a: Gates) -> Gates:
    """Return P(g > 0) = sigmoid(log_a - T ln(-low / high)).

    >>> open_probability(torch.tensor([0.0, 1.0, -1.0]))
    tensor([0.6881, 0.8571, 0.4480])
    """
    return torch.sigmoid(log_a - TEMPERATURE * math.log(-LOW / HIGH))


def fixed_gate(log_a: Gates) -> Gates:
    """Return the fixed gate that represents the distribution after training.

    clip(sigmoid(log_a) (high - low) + low, 0, 1), without the temperature (Voita et al. 2019).

    >>> fixed_gate(torch.tensor([0.0, 1.0, -1.0, 2.4, -2.4]))
    tensor([0.5000, 0.7773, 0.2227, 1.0000, 0.0000])
    """
    return (torch.sigmoid(log_a) * (HIGH - LOW) + LOW).clamp(0.0, 1.0)


def drawn_gate(log_a: Gates, uniform: Float[Tensor, "draw head"]) -> Float[Tensor, "draw head"]:
    """Return gates for numbers drawn uniformly from 0 to 1; log_a's gradient flows through them.

    clip(s (high - low) + low, 0, 1) with s = sigmoid((ln u - ln(1 - u) + log_a) / T).
    """
    u = uniform.clamp(SMALLEST, 1.0 - SMALLEST)
    soft = torch.sigmoid((u.log() - (-u).log1p() + log_a) / TEMPERATURE)
    return (soft * (HIGH - LOW) + LOW).clamp(0.0, 1.0)


@torch.inference_mode(False)
@torch.enable_grad()
def learn_gates(
    model: HookedGPT,
    batch: Batch | Tokens,
    *,
    penalty: float = 0.05,
    steps: int = 300,
    learning_rate: float = 0.1,
    reference: Reference | None = None,
    seed: int = 0,
) -> LearnedGates:
    """Learn one gate per head by gradient descent on loss + penalty * sum of P(open).

    Only the gates learn: Adam moves log_a, every sequence of a step draws its own gates, and the
    model stays as it is.

    Args:
        model: A trained HookedGPT.
        batch: Sequences of a task, or plain tokens, where every next token is scored; each step
            draws some of them.
        penalty: What an open head costs, in nats; the more, the more heads close.
        steps: Steps of Adam.
        learning_rate: Learning rate of log_a.
        reference: The mean z that fills a closed gap; None: zeros.
        seed: Seed of the draws.

    Raises:
        ValueError: A number out of its range, or nothing to learn from.
    """
    require_gates(model)
    require_number("penalty", penalty, 0.0)
    require_whole("steps", steps, 1)
    require_number("learning_rate", learning_rate, 0.0)
    require_seed(seed)
    batch = as_batch(batch)
    scored = batch.loss_mask.any(dim=1).nonzero()[:, 0].cpu()
    require(len(scored) > 0, "sequences with scored rows", "at least 1", 0)
    config, device = model.config, model.device
    heads = config.heads()
    require(bool(heads), "model", "one with heads", "one without")
    fill = None if reference is None else reference.z.unsqueeze(1)
    generator = torch.Generator().manual_seed(seed)
    size = max(1, TOKENS_A_STEP // batch.tokens.shape[1])
    log_a = torch.full((len(heads),), WIDE_OPEN, device=device, requires_grad=True)
    adam = torch.optim.Adam([log_a], lr=learning_rate)
    trajectory, losses = [log_a.detach().cpu().double()], []
    for _ in range(steps):
        rows = scored[torch.randperm(len(scored), generator=generator)[:size]]
        parts = (values[rows] for values in (batch.tokens, batch.loss_mask, batch.sources))
        part = Batch(*parts).to(device)
        uniform = torch.rand(len(rows), len(heads), generator=generator).to(device)
        g = torch.ones(config.n_layers, len(rows), 1, config.n_heads, device=device)
        layers, ids = torch.tensor(heads).T
        g[layers, :, 0, ids] = drawn_gate(log_a, uniform).T
        loss = answer_loss(model.forward(part.tokens, gates=GateTensors(g=g, fill=fill)), part)
        # autograd.grad: .grad of the model's own parameters stays as it was found.
        (log_a.grad,) = torch.autograd.grad(loss + penalty * open_probability(log_a).sum(), [log_a])
        adam.step()
        trajectory.append(log_a.detach().cpu().double())
        losses.append(loss.item())
    return LearnedGates(
        heads=heads,
        log_a=trajectory[-1],
        trajectory=torch.stack(trajectory),
        losses=tuple(losses),
    )
