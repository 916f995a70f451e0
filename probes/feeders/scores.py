"""Who feeds an induction head: what is left of its score, and of the loss, without earlier heads.

An induction head finds the token after an earlier copy because some earlier head told each key
what stood before it. Weights only say which head could; here every earlier head is ablated, alone
and together with others that attend to the previous token, and the induction head is observed.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from lab.checks import require
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.naming import head_label
from probes.ablation.matched_sets import Head, draw_matched_sets
from probes.ablation.sweep import Ablation, HeadSet
from probes.attention.heads import mass_on
from probes.attention.targets import ProbeInput, previous_token
from probes.execution import Execution
from probes.feeders.composition import composition_scores
from probes.feeders.passes_without_heads import FeederRuns, induction_means, runs_without
from probes.intervals import bootstrap_interval
from probes.labels.rules import CUTS
from probes.reading.inputs import PairedInput, repeated_pair
from probes.reading.observed_model import measured_layers, probe_input, provenance, require_gates
from probes.reading.pattern_reads import LayerReads
from probes.registry import MASS
from probes.schemas.cause import FEEDERS
from probes.tables import rows_table

JOINT_PREVIOUS = 0.3
"""Previous-token score from which heads are ablated together."""
CONTROL_PREVIOUS = 0.1
"""Previous-token score below which a head is a control."""
LOST = 0.5
"""Share of its score that a target loses without a head that feeds it."""
CONTROL_LOST = 0.25
"""Share of that drop that the controls may cost."""
CONTROLS = 5
"""Random sets that heads ablated together are compared with."""
N_SEQUENCES = 8
"""Sequences that are drawn."""

COMPOSITION = ("q_composition", "k_composition", "v_composition")
"""Columns of the scores by the weights."""

PerHead = Float64[np.ndarray, " column"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Looks:
    """What the heads of the whole model attend to on repeated blocks."""

    heads: tuple[Head, ...]
    previous: PerHead
    """Mean attention on the previous token."""
    induction: PerHead
    """Mean attention on what followed the first copy, less the same cells without a copy."""

    def previous_of(self, head: Head) -> float:
        """Return one head's previous-token score."""
        return float(self.previous[self.heads.index(head)])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One row: heads to ablate, their target, and the controls."""

    target: Head
    heads: HeadSet
    controls: tuple[HeadSet, ...]

    def names(self, looks: Looks) -> dict[str, Any]:
        """Return what the row says before anything is measured."""
        single = len(self.heads) == 1
        return {
            "layer": self.heads[0][0] if single else None,
            "head": self.heads[0][1] if single else None,
            "heads": HeadGates(heads=self.heads).label,
            "previous": looks.previous_of(self.heads[0]) if single else math.nan,
            "target_layer": self.target[0],
            "target_head": self.target[1],
        }


def feeder_scores(
    model: HookedGPT,
    pair: PairedInput | None = None,
    *,
    targets: Iterable[Head] | None = None,
    feeders: Iterable[Head] | None = None,
    ablation: Ablation | None = None,
    frozen: bool = False,
    seed: int = 0,
    execution: Execution | None = None,
) -> pd.DataFrame:
    """Ablate each earlier head and observe the induction heads: one row per target and ablation.

    drop = the target's induction score in the whole model minus that without the heads; loss_delta
    = the rise of the second copy's loss. Rows without a head ablate all earlier heads that attend
    to the previous token (score 0.3 or more) together, because where several feed a target, each
    can be removed alone. The control of a row is the mean over heads of the same layer that do not
    (score below 0.1), or over random sets of the same size, drawn from neighbouring layers where
    the layer has too few.

    feeds is true if the lower end of the drop's interval is at least half of the target's score and
    the control's drop at most a quarter of it; it is missing where this cannot be decided. The
    composition scores come from the weights alone; see `probes.feeders.composition`. A head that
    the whole model depends on feeds its induction heads too: one that they read directly also has a
    K score well above chance.

    Args:
        model: A HookedGPT.
        pair: Repeated blocks; None: 8 sequences of two blocks of 25 tokens, or what fits.
        targets: Induction heads, in original ids; None: all whose induction score is 0.4 or more
            above its control.
        feeders: Heads to ablate; None: every head of a layer before the last target.
        ablation: What happens to them; None: zeros.
        frozen: Also measure the loss where all attention stays as it is in the whole model: what
            remains of the rise does not go through what later heads attend to.
        seed: Seed of sequences, control sets and bootstrap.
        execution: Progress and ledger of the runs; no memory or processes of your own.

    Raises:
        ValueError: There is no induction head, no earlier head, no such head, no room for
            repeated blocks, or the ledger is of another request or of a model with hooks.
    """
    require_gates(model)
    ablation = Ablation() if ablation is None else ablation
    execution = Execution() if execution is None else execution
    execution.require_default("feeder_scores", "memory", "processes")
    if pair is None:
        pair = repeated_pair(model, n_sequences=N_SEQUENCES, seed=seed)
    looks = looks_of(model, pair)
    watched = chosen_targets(model, looks, targets)
    feeding = looks.heads if feeders is None else HeadGates.ablate(feeders, like=model).heads
    comparisons = [one for target in watched for one in compared(looks, target, feeding, seed)]
    if not comparisons:
        raise ValueError(
            "feeders must be in layers before their target, got "
            f"{'none' if feeders is None else HeadGates(heads=feeding).label} for "
            f"{HeadGates(heads=watched).label}"
        )
    sets = sorted({one for row in comparisons for one in (row.heads, *row.controls)})
    runs = runs_without(
        model,
        pair,
        sets,
        watched,
        ablation=ablation,
        frozen=frozen,
        execution=execution,
    )
    composition = composition_of(model, watched, feeding)
    rows = [
        {
            **row.names(looks),
            "mode": ablation.mode,
            **numbers,
            **dict.fromkeys(COMPOSITION, math.nan),
            **composition.get((row.heads, row.target), {}),
            "n_sequences": len(pair),
            "n_rows": len(pair) * pair.block,
            "unit": MASS,
        }
        for row, numbers in zip(
            comparisons, measured_rows(runs, comparisons, sets, watched, seed), strict=True
        )
    ]
    return rows_table(
        rows,
        FEEDERS,
        {
            **provenance(model, pair.tokens),
            "ablation": ablation.to_dict(),
            "bootstrap_seed": seed,
            "repeated_blocks": pair.description,
        },
    )


def looks_of(model: HookedGPT, pair: PairedInput) -> Looks:
    """Measure what every head of the whole model attends to."""

    def measure(_: int, reads: LayerReads, x: ProbeInput) -> Float64[Tensor, "score head"]:
        back = previous_token(x)
        previous = mass_on(reads, back).cpu().double() / back.n_rows.unsqueeze(1)
        induction = induction_means(reads, pair)
        return torch.stack([previous, induction]).sum(dim=1)

    arms = []
    for tokens in (pair.tokens, pair.control):
        x = probe_input(model, tokens, pair.special_ids)
        found = measured_layers(model, x, measure, torch.add)
        sums = torch.cat([total for (total,) in found.values()], dim=1)
        arms.append(sums.numpy() / len(pair))
    return Looks(
        heads=model.config.heads(),
        previous=arms[0][0],
        induction=arms[0][1] - arms[1][1],
    )


def chosen_targets(
    model: HookedGPT, looks: Looks, targets: Iterable[Head] | None
) -> tuple[Head, ...]:
    """Return the heads to observe: the requested ones, or all induction heads, strongest first.

    Raises:
        ValueError: There is no induction head behind the first layer, or a requested head is
            unknown.
    """
    if targets is not None:
        named = HeadGates.ablate(targets, like=model).heads
        require(bool(named), "targets", "at least one head", named)
        return named
    order = sorted(range(len(looks.heads)), key=lambda i: -looks.induction[i])
    later = [i for i in order if looks.heads[i][0] > 0]
    chosen = tuple(looks.heads[i] for i in later if looks.induction[i] >= CUTS.strong)
    if not chosen:
        best = (
            f"{looks.induction[later[0]]:.2f} of {head_label(*looks.heads[later[0]])}"
            if later
            else "no head behind the first layer"
        )
        raise ValueError(
            f"targets must be induction heads, of an induction score of {CUTS.strong:g} or more "
            f"above the control, got {best} at most; a model can copy without them, and others "
            "are watched when they are named as targets"
        )
    return chosen


def compared(
    looks: Looks, target: Head, feeders: Collection[Head], seed: int
) -> Iterator[Comparison]:
    """Yield the ablations for one target: all previous-token heads together, then each head."""
    earlier = [head for head in looks.heads if head[0] < target[0]]
    idle = [head for head in earlier if looks.previous_of(head) < CONTROL_PREVIOUS]
    own = [head for head in earlier if head in feeders]
    joint = tuple(head for head in own if looks.previous_of(head) >= JOINT_PREVIOUS)
    if len(joint) > 1:
        others = draw_matched_sets(joint, idle, CONTROLS, seed=seed)
        yield Comparison(target=target, heads=joint, controls=tuple(others))
    for head in own:
        yield Comparison(target=target, heads=(head,), controls=nearest_controls(head, idle))


def nearest_controls(head: Head, idle: Collection[Head]) -> tuple[HeadSet, ...]:
    """Return the other idle heads of a head's layer, or else of the layers that are nearest.

    >>> nearest_controls((2, 0), [(0, 1), (1, 0), (1, 3)])
    (((1, 0),), ((1, 3),))
    """
    others = [other for other in idle if other != head]
    nearest = min((abs(layer - head[0]) for layer, _ in others), default=0)
    return tuple((other,) for other in others if abs(other[0] - head[0]) == nearest)


def measured_rows(
    runs: FeederRuns,
    comparisons: Iterable[Comparison],
    sets: Sequence[HeadSet],
    targets: Sequence[Head],
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Yield the numbers of each row."""
    run_of = {heads: 1 + i for i, heads in enumerate(sets)}
    each = np.ones(len(runs.losses))
    drops = runs.scores[:, :1] - runs.scores
    rises, frozen = (own - runs.losses[:, :1] for own in (runs.losses, runs.frozen_losses))
    drop_ends = [bootstrap_interval(drops[:, :, i], each, seed=seed) for i in range(len(targets))]
    rise_low, rise_high = bootstrap_interval(rises, each, seed=seed)
    for row in comparisons:
        target, run = targets.index(row.target), run_of[row.heads]
        others = [run_of[one] for one in row.controls]
        baseline = runs.scores[:, 0, target].mean()
        drop, control = drops[:, run, target].mean(), mean_over(drops[:, others, target])
        low, high = drop_ends[target]
        yield {
            "baseline": baseline,
            "ablated": baseline - drop,
            "drop": drop,
            "ci_low": low[run],
            "ci_high": high[run],
            "control": control,
            "loss": runs.losses[:, 0].mean(),
            "loss_delta": rises[:, run].mean(),
            "loss_ci_low": rise_low[run],
            "loss_ci_high": rise_high[run],
            "loss_control": mean_over(rises[:, others]),
            "frozen_loss_delta": frozen[:, run].mean(),
            "n_controls": len(others),
            "feeds": is_fed(baseline, drop, low[run], control),
        }


def is_fed(baseline: float, drop: float, low: float, control: float) -> bool | None:
    """Return whether a target depends on ablated heads; None without an interval or a control.

    Args:
        baseline: The target's score in the whole model.
        drop: What it loses without the heads.
        low: Lower end of that drop's interval.
        control: What it loses without others.
    """
    if drop < LOST * baseline:
        return False  # the loss is too small, whatever the interval and the controls are
    if math.isnan(low) or math.isnan(control):
        return None
    return bool(low >= LOST * baseline and control <= CONTROL_LOST * drop)


def mean_over(values: Float64[np.ndarray, "batch run"]) -> float:
    """Return the mean over sequences and runs; NaN without a run."""
    return float(values.mean()) if values.size else math.nan


def composition_of(
    model: HookedGPT, readers: Collection[Head], writers: Collection[Head]
) -> dict[tuple[HeadSet, Head], dict[str, float]]:
    """Return the composition scores of each earlier head with each target, less chance."""
    frame = composition_scores(model, readers=readers, writers=writers)
    found: dict[tuple[HeadSet, Head], dict[str, float]] = {}
    for writer, from_head, reader, head, kind, excess in zip(
        *(frame[name].tolist() for name in ("from_layer", "from_head", "layer", "head")),
        *(frame[name].tolist() for name in ("kind", "excess")),
        strict=True,
    ):
        own = found.setdefault((((writer, from_head),), (reader, head)), {})
        own[f"{kind.lower()}_composition"] = excess
    return found
