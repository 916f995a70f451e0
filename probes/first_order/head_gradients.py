"""What a metric does to first order when the gate of a head opens or closes: dM/dg at g = 1.

With z <- g * z + (1 - g) * fill, dM/dg = (z - fill) . dM/dz: minus the first-order estimate of an
ablation that puts the fill in the place of z. Importance and attribution patching are two ways to
add it up; each has a module of its own.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lab.gates import GateTensors
from lab.hooked_gpt import HookedGPT
from lab.shapes import GivenMask, PositionMask, Resid, Tokens
from lab.tasks.base import Batch
from probes.ablation.metrics import (
    Metric,
    MetricFunction,
    one_metric,
    require_a_number_a_row,
)
from probes.ablation.sweep import require_answers, require_positions, scored_batch
from probes.execution import MEMORY
from probes.reading.observed_model import (
    as_batch,
    model_device,
    probe_input,
    require_differentiable,
    require_gates,
)

FillOf = Callable[[slice], Float[Tensor, "layer #batch #pos head d_head"] | None]
"""What replaces z in some of the sequences; None: zeros."""
Gradients = Float[Tensor, "layer batch pos head"]
PerSequence = Float64[np.ndarray, "sequence head"]


@dataclass(frozen=True, kw_only=True, eq=False)
class GateGradients:
    """dM/dg of every head, where M is the sum of a metric over the scored rows of a sequence."""

    heads: tuple[tuple[int, int], ...]
    """(layer, head) of each column, in original ids."""
    metric: Metric
    signed: PerSequence
    """Summed over the positions of the gate."""
    absolute: PerSequence
    """The sum over positions of the absolute values."""
    dropped: PerSequence | None
    """Mean over layers l of |signed without the gradient through layer l|; None: not requested.

    Where direct and indirect effects cancel, this does not. The layer of the head itself gives 0,
    so the mean is over the others (Kramar et al. 2024, AtP*: GradDrop).
    """
    counts: Float64[np.ndarray, " sequence"]
    """Scored rows."""

    @property
    def n_sequences(self) -> int:
        """How many sequences have a row that is scored."""
        return int(np.count_nonzero(self.counts))


@torch.inference_mode(False)
def gate_gradients(
    model: HookedGPT,
    batch: Batch | Tokens,
    metric: str | MetricFunction = "loss",
    *,
    fill: FillOf | None = None,
    positions: tuple[int, ...] | None = None,
    grad_drop: bool = False,
    attention_mask: GivenMask | None = None,
    memory: int = MEMORY,
) -> GateGradients:
    """Return dM/dg of every head and sequence: one forward and one backward pass.

    Args:
        model: A HookedGPT; its parameters and their gradients are left as they are.
        batch: Sequences of a task, or plain tokens, where every next token is scored.
        metric: "loss" or "margin", or a function of that form with a gradient.
        fill: What the gates let in as they close; None: zeros.
        positions: Positions of the gates that are added up; None: all.
        grad_drop: Fill `dropped` too: one more backward pass for each layer.
        attention_mask: True at real tokens.
        memory: Bytes that activations may take at once, unless one sequence takes more.

    Raises:
        ValueError: An unknown metric, one without a gradient, no sequence, or answers outside
            the model's output vocabulary.
    """
    require_gates(model)
    measured = differentiable_metric(metric)
    real = probe_input(model, batch, attention_mask=attention_mask).real
    require_differentiable(model)
    scored = scored_batch(as_batch(batch), real)
    require_answers(scored, model.config.vocab_out)
    require_positions(positions, scored.tokens.shape[1])
    heads = model.config.heads()
    layers, ids = torch.tensor(heads, dtype=torch.long).reshape(-1, 2).T
    device, others = model_device(model), model.config.n_layers - 1 or math.nan
    signed, absolute, dropped = [], [], []
    for rows in sequence_slices(model, scored, memory):
        plain, *without = slice_gradients(
            model,
            plain_batch(scored[rows].to(device)),
            measured,
            None if fill is None else plain_tensor(fill(rows)),
            None if real is None else plain_tensor(real[rows].to(device)),
            grad_drop,
        )
        some = slice(None) if positions is None else [p for p in positions if p < plain.shape[2]]
        own = plain.cpu().double()[layers, :, :, ids][..., some]  # head, batch, pos
        signed.append(own.sum(dim=2).T)
        absolute.append(own.abs().sum(dim=2).T)
        each = [one.cpu().double()[layers, :, :, ids][..., some].sum(dim=2) for one in without]
        dropped += [torch.stack(each).abs().sum(dim=0).T] if each else []
    return GateGradients(
        heads=heads,
        metric=measured,
        signed=torch.cat(signed).numpy(),
        absolute=torch.cat(absolute).numpy(),
        dropped=torch.cat(dropped).numpy() / others if dropped else None,
        counts=scored.loss_mask.sum(dim=1).cpu().double().numpy(),
    )


def plain_tensor(tensor: Tensor | None) -> Tensor | None:
    """Return a tensor that autograd may keep, which one made in inference mode is not."""
    return tensor.clone() if tensor is not None and tensor.is_inference() else tensor


def plain_batch(batch: Batch) -> Batch:
    """Return a batch whose tokens and scored rows autograd may keep."""
    if not (batch.tokens.is_inference() or batch.loss_mask.is_inference()):
        return batch
    return dataclasses.replace(
        batch, tokens=batch.tokens.clone(), loss_mask=batch.loss_mask.clone()
    )


def slice_gradients(
    model: HookedGPT,
    batch: Batch,
    metric: Metric,
    fill: Float[Tensor, "layer #batch #pos head d_head"] | None,
    real: PositionMask | None,
    grad_drop: bool,
) -> list[Gradients]:
    """Return dM/dg of some sequences, of the gate at each position.

    With grad_drop it is followed by the same without the gradient through each layer in turn.
    """
    config, cfg = model.config, model.cfg
    shape = (config.n_layers, *batch.tokens.shape, config.n_heads)
    drops = [None, *range(config.n_layers)] if grad_drop else [None]
    if not bool(batch.loss_mask.any()):
        return [torch.zeros(shape)] * len(drops)
    dropped: list[int | None] = [None]
    with torch.enable_grad():
        g = torch.ones(shape, dtype=cfg.dtype, device=cfg.device, requires_grad=True)
        options: dict[str, Any] = {"gates": GateTensors(g=g, fill=fill), "attention_mask": real}
        if grad_drop:
            residual = model.forward(batch.tokens, attention_mask=real, stop_at_layer=0)
            for layer in range(config.n_layers):
                out = model.forward(
                    residual, start_at_layer=layer, stop_at_layer=layer + 1, **options
                )
                residual = residual + switched(out - residual, layer, dropped)
        else:
            residual = model.forward(batch.tokens, stop_at_layer=config.n_layers, **options)
        values = row_values(model, residual, batch, metric)
        if not values.requires_grad:
            raise ValueError(
                f"metric must have a gradient, got {metric.name}; take 'loss' or 'margin'"
            )
        found = []
        for layer in drops:
            dropped[0] = layer
            # grad and not backward: the parameters' own gradients are left alone.
            (gradient,) = torch.autograd.grad(values.sum(), g, retain_graph=grad_drop)
            found.append(gradient)
        return found


def switched(update: Resid, layer: int, dropped: list[int | None]) -> Resid:
    """Return what a layer adds to the stream; while dropped names it, no gradient comes through."""
    update.register_hook(lambda gradient: gradient * (dropped[0] != layer))
    return update


def row_values(
    model: HookedGPT, residual: Resid, batch: Batch, metric: Metric
) -> Float[Tensor, " row"]:
    """Return the metric of every scored row; only these are unembedded."""
    rows = residual[batch.loss_mask].unsqueeze(1)
    logits = model.forward(rows, start_at_layer=model.config.n_layers).squeeze(1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = batch.tokens.roll(-1, dims=1)[batch.loss_mask]
    values = metric.of_rows(logits, targets, logits.detach())
    require_a_number_a_row(metric, values, len(targets))
    return values


def differentiable_metric(metric: str | MetricFunction) -> Metric:
    """Return a metric that has a first order at the whole model.

    Raises:
        ValueError: It has none.
    """
    found = one_metric(metric)
    if isinstance(metric, str) and metric not in ("loss", "margin"):
        why = "is least at the whole model" if metric == "kl" else "counts right answers"
        raise ValueError(
            f"metric must have a first-order change, got {metric}, which {why}; take 'loss' or "
            "'margin'"
        )
    return found


def sequence_slices(model: HookedGPT, batch: Batch, memory: int) -> Iterator[slice]:
    """Yield the sequences as many at a time as a backward pass has memory for."""
    config = model.config
    # What autograd keeps of a token: some twenty vectors of the stream and four of the hidden layer
    # a block, and logits with their gradients.
    width = 20 * config.d_model + 4 * config.mlp_width
    numbers = config.n_layers * width + 4 * config.vocab_out
    step = max(1, memory // (numbers * model.cfg.dtype.itemsize * batch.tokens.shape[1]))
    for start in range(0, len(batch), step):
        yield slice(start, start + step)
