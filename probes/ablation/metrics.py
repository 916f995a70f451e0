"""What an intervention is measured by: numbers of the rows that predict an answer.

Any function of the same form as the ones here is a metric too. Which heads are ablated, and how the
rows come about, belongs to `probes.ablation.sweep`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lab.naming import quoted, unknown_name

RowLogits = Float[Tensor, "row d_vocab"]
RowTargets = Int[Tensor, " row"]
RowValues = Float[Tensor, " row"]
MetricFunction = Callable[[RowLogits, RowTargets, RowLogits], RowValues]
"""(logits, the correct next tokens, logits of the whole model) -> one number a row.

Each row is of a sequence, in order; the metric is the mean over the rows that are scored.
"""
MetricName = Literal["loss", "token_accuracy", "exact_match", "margin", "kl"]


def loss_rows(logits: RowLogits, targets: RowTargets, baseline: RowLogits) -> RowValues:
    """Return -ln p(the correct next token), in nats."""
    return F.cross_entropy(logits, targets, reduction="none")


def margin_rows(logits: RowLogits, targets: RowTargets, baseline: RowLogits) -> RowValues:
    """Return the logit of the correct next token less the largest other logit."""
    answers = targets.unsqueeze(1)
    others = logits.scatter(1, answers, -torch.inf).amax(dim=1)
    return logits.gather(1, answers).squeeze(1) - others


def right_rows(logits: RowLogits, targets: RowTargets, baseline: RowLogits) -> RowValues:
    """Return 1 where the correct next token has the largest logit, else 0."""
    margin = margin_rows(logits, targets, baseline)  # several times as quick as argmax
    right = margin > 0
    tied = margin == 0
    if bool(tied.any()):  # the first of the largest logits counts
        right[tied] = logits[tied].argmax(dim=1) == targets[tied]
    return right.to(logits.dtype)


def kl_rows(logits: RowLogits, targets: RowTargets, baseline: RowLogits) -> RowValues:
    """Return KL(whole model || ablated) of the next token, in nats."""
    ablated, whole = logits.log_softmax(dim=1), baseline.log_softmax(dim=1)
    return F.kl_div(ablated, whole, reduction="none", log_target=True).sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of an intervention."""

    name: str
    unit: str
    """Unit of its values; empty where a function of the user's does not say."""
    better: Literal["lower", "higher"] | None
    """Which way is better; None: unknown."""
    per: Literal["token", "sequence"]
    """What it is a mean over: scored rows, or sequences whose rows are all 1."""
    of_rows: MetricFunction
    summary: str


METRICS: tuple[Metric, ...] = (
    Metric(
        name="loss",
        unit="nats",
        better="lower",
        per="token",
        of_rows=loss_rows,
        summary="-ln p(the right token)",
    ),
    Metric(
        name="token_accuracy",
        unit="share",
        better="higher",
        per="token",
        of_rows=right_rows,
        summary="right tokens",
    ),
    Metric(
        name="exact_match",
        unit="share",
        better="higher",
        per="sequence",
        of_rows=right_rows,
        summary="sequences with every token right",
    ),
    Metric(
        name="margin",
        unit="logit",
        better="higher",
        per="token",
        of_rows=margin_rows,
        summary="logit of the right token less the largest other one",
    ),
    Metric(
        name="kl",
        unit="nats",
        better="lower",
        per="token",
        of_rows=kl_rows,
        summary="KL(whole model || ablated) of the next token",
    ),
)
"""Every metric that has a name."""

DEFAULT_METRICS: tuple[MetricName, ...] = ("loss", "token_accuracy", "exact_match")
"""The default metrics of a sweep: those that `lab.evaluation` measures."""


def require_a_number_a_row(metric: Metric, found: object, n_rows: int) -> None:
    """Raise ValueError unless a metric gave one number for each of its rows."""
    if not isinstance(found, Tensor) or found.shape != (n_rows,):
        got = list(found.shape) if isinstance(found, Tensor) else quoted(found)
        raise ValueError(
            f"metric {quoted(metric.name)} must return a tensor of one number a row [{n_rows}], "
            f"got {got}"
        )


def get_metrics(wanted: str | Iterable[str | MetricFunction]) -> tuple[Metric, ...]:
    """Return metrics by name, and functions of the user's as metrics; a single name is one metric.

    Raises:
        ValueError: An unknown name, something else than a name or a function, nothing at all, or
            the same name twice.
    """
    found = tuple(one_metric(each) for each in ((wanted,) if isinstance(wanted, str) else wanted))
    names = [metric.name for metric in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"metrics must be of different names, got {quoted(twice)} twice; name each once, and "
            "give functions names of their own"
        )
    if not found:
        raise ValueError("metrics must be at least one name or function, got none")
    return found


def one_metric(wanted: str | MetricFunction) -> Metric:
    """Return one metric of get_metrics."""
    if isinstance(wanted, str):
        for metric in METRICS:
            if metric.name == wanted:
                return metric
        raise ValueError(unknown_name("metric", wanted, [metric.name for metric in METRICS]))
    if not callable(wanted):
        raise ValueError(
            f"a metric must be a name or a function of (logits, targets, baseline_logits), "
            f"got {quoted(wanted)}"
        )
    name = getattr(wanted, "__name__", type(wanted).__name__)
    return Metric(name=name, unit="", better=None, per="token", of_rows=wanted, summary=name)
