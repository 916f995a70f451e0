"""What each head does, in one word with the evidence for it: `label_heads`.

Everything is measured in `probes.labels.evidence`, tested in `probes.labels.significance` and
decided in `probes.labels.rules`; here it is put together and written down.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float64

from lab.checks import require
from lab.naming import head_label
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.attention.distances import distance_rows, distance_totals
from probes.attention.targets import ProbeInput
from probes.head_classes import CLASSES, CONTENT, LADDER
from probes.labels.evidence import Evidence, gather_evidence
from probes.labels.label_tables import (
    ClassSummary,
    rows_of_evidence,
    rows_of_labels,
    rows_text,
    summarised,
)
from probes.labels.layer_measures import Heads
from probes.labels.reasons import reason
from probes.labels.rules import (
    CUTS,
    ClassNumbers,
    Cuts,
    Decision,
    HeadNumbers,
    decide,
)
from probes.labels.significance import FlipTest, flip_test
from probes.labels.source_stripes import STRIPES
from probes.reading.checked_sequences import CheckedSequences, check_sequences
from probes.reading.inputs import PairedInput
from probes.reading.observed_model import ReadableModel, provenance, require_finite
from probes.schemas.labels import EVIDENCE, LABELS
from probes.tables import rows_table
from probes.writing.copying import eigenvalue_scores, model_ends
from probes.writing.head_weights import part_of, weight_of

COMPARED = 4
"""Sequences on which heads of one label are compared with each other."""
COMPARED_TOKENS = 128
"""Tokens of each of them."""

PerHead = Float64[np.ndarray, " column"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelStudy:
    """The labels of all heads, and all that was measured to find them."""

    labels: pd.DataFrame
    """One row a head: what `label_heads` returns."""
    evidence: pd.DataFrame
    """One row a head and class: its numbers, and the first condition that it fails."""


def label_heads(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens | None = None,
    *,
    attention_mask: GivenMask | None = None,
    special_ids: tuple[int, ...] | None = None,
    sequences: int = 64,
    seed: int = 0,
) -> pd.DataFrame:
    """Say what each head does: one row per layer and head, with the evidence for its label.

    label is one of previous, current, first, sources (of a task's answers; in reversal the
    anti-diagonal), duplicate, preceder, induction; or uniform, broad, mixed, none. A class is the
    label only if the lower end of its 95 % interval is above a threshold (also after correction
    for chance), the effect is significant (sign flips over sequences against the paired control,
    q < 0.05, for classes with a control), the neighbouring cells have at most half as much, and
    every other class is at least 0.1 behind. silent and redundant_with are flags beside the label.
    With fewer than 8 sequences, or without any spread, there is no test, and p and q are NaN.
    `label_study` takes blocks and thresholds of your own, and returns the evidence too.

    >>> from probes.planted import PlantedHead, plant
    >>> model = plant([[PlantedHead(kind="previous"), PlantedHead(kind="uniform")]]).model
    >>> label_heads(model, sequences=8)["label"].tolist()
    ['previous', 'uniform']

    Args:
        model: A HookedGPT or any TransformerLens model.
        batch_or_tokens: A task's batch or plain tokens, which show previous, current, first and a
            task's sources; duplicate, preceder and induction are always measured on repeated
            blocks.
            None: all classes are.
        attention_mask: True (or 1) at real tokens of the input. None: all tokens are real.
        special_ids: Ids of BOS and SEP; None: as in `score_heads`.
        sequences: Repeated blocks that are drawn.
        seed: Seed of the blocks, of the bootstrap and of the sign flips.

    Raises:
        ValueError: As `score_heads`; or there is no input and no room for repeated blocks, or
            some attention is NaN.
    """
    return label_study(
        model,
        batch_or_tokens,
        attention_mask=attention_mask,
        special_ids=special_ids,
        sequences=sequences,
        seed=seed,
    ).labels


def label_study(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens | None = None,
    *,
    attention_mask: GivenMask | None = None,
    special_ids: tuple[int, ...] | None = None,
    sequences: int = 64,
    seed: int = 0,
    pair: PairedInput | None = None,
    cuts: Cuts = CUTS,
) -> LabelStudy:
    """Return the labels of `label_heads`, and the numbers of every head and class behind them.

    Args:
        model: A HookedGPT or any TransformerLens model.
        batch_or_tokens: As in `label_heads`.
        attention_mask: As in `label_heads`.
        special_ids: As in `label_heads`.
        sequences: Repeated blocks that are drawn, unless there is a pair.
        seed: As in `label_heads`.
        pair: Repeated blocks and their control, as `repeated_pair` returns them.
        cuts: The thresholds of the labels.
    """
    require(isinstance(cuts, Cuts), "cuts", "a probes.labels.rules.Cuts", cuts)
    require_finite(model)
    checked = check_sequences(
        model,
        batch_or_tokens,
        attention_mask=attention_mask,
        special_ids=special_ids,
        n_pairs=sequences,
        seed=seed,
        pair=pair,
    )
    return study_of(model, checked, seed=seed, cuts=cuts)


def study_of(
    model: ReadableModel, checked: CheckedSequences, *, seed: int = 0, cuts: Cuts = CUTS
) -> LabelStudy:
    """Return what `label_study` does, on sequences that were checked."""
    x, pair, on_pair = checked.x, checked.pair, checked.on_pair
    evidence = gather_evidence(
        model, x, pair, on_pair=on_pair, source_control=checked.other_answers
    )
    require_numbers(evidence)
    tests = content_tests(evidence, seed)
    summaries = summarised(evidence, tests, seed)
    decisions = [
        decide(head_numbers(evidence, summaries, column), cuts)
        for column in range(len(evidence.heads))
    ]
    attrs = {
        **provenance(model, x.tokens),
        "bootstrap_seed": seed,
        "cuts": cuts.to_dict(),
        "repeated_blocks": None if pair is None else pair.description,
        "sign_flips": tests.n_flips,
        "sign_flips_exact": tests.exact,
    }
    described = {
        name: rows_text(name, x, pair if on_pair or name in CONTENT else None) for name in CLASSES
    }
    rows = rows_of_labels(evidence, summaries, decisions, cuts, described)
    stand_ins = redundant_heads(model, x, pair, evidence.heads, decisions, cuts)
    eigenvalues = eigenvalues_of(model, evidence.heads)
    for column, row in enumerate(rows):
        row["redundant_with"] = stand_ins[column]
        row["eigenvalue"] = eigenvalues[column]
        row["reason"] = reason(row, decisions[column], cuts)
    return LabelStudy(
        labels=rows_table(rows, LABELS, attrs),
        evidence=rows_table(rows_of_evidence(evidence, summaries, decisions), EVIDENCE, attrs),
    )


def require_numbers(evidence: Evidence) -> None:
    """Reject NaN attention: every scored row has visible keys.

    Raises:
        ValueError: Some head's attention is NaN.
    """
    missing = np.any([np.isnan(own.mass).any(axis=0) for own in evidence.classes.values()], axis=0)
    heads = [head_label(*evidence.heads[i]) for i in np.flatnonzero(missing)]
    if heads:
        more = f" and {len(heads) - 1} more" if len(heads) > 1 else ""
        raise ValueError(
            f"attention must be numbers, got NaN in {heads[0]}{more}; its scores are infinite, or "
            "a hook made them so"
        )


def content_tests(evidence: Evidence, seed: int) -> FlipTest:
    """Test the effects of all heads and classes of content together; a class after the other."""
    shown = [evidence.classes[name] for name in CONTENT if name in evidence.classes]
    if not shown:
        return flip_test(np.zeros((0, 0)), seed=seed)
    return flip_test(
        np.concatenate([own.effect / own.n_rows[:, None] for own in shown], axis=1), seed=seed
    )


def head_numbers(
    evidence: Evidence, summaries: Mapping[str, ClassSummary], column: int
) -> HeadNumbers:
    """Return what the label of one head depends on."""
    steps = evidence.ladder[:, column] - evidence.ladder_control[:, column]
    return HeadNumbers(
        classes={
            name: ClassNumbers(
                effect=float(own.effect[column]),
                low=float(own.low[column]),
                chance=own.even,
                sink=float(own.sink[column]),
                q_value=float(own.tested[1][column]),
            )
            for name, own in summaries.items()
        },
        ladder=dict(zip(LADDER, steps.tolist(), strict=True)),
        stripes=dict(zip(STRIPES, evidence.stripes[:, column].tolist(), strict=True)),
        spectrum=tuple(evidence.spectrum[column].tolist()),
        entropy_normalised=float(evidence.entropy_normalised[column]),
        sink_free_normalised=float(evidence.sink_free_normalised[column]),
        overlap=evidence.overlap,
        first_elsewhere=float(evidence.first_elsewhere[column]),
    )


def redundant_heads(
    model: ReadableModel,
    x: ProbeInput,
    pair: PairedInput | None,
    heads: Heads,
    decisions: list[Decision],
    cuts: Cuts,
) -> list[str]:
    """Return for each head those of its label that attend alike, written L0H1,L0H2.

    Heads of content are compared where blocks repeat, the others on the input.
    """
    found = [""] * len(heads)
    for content in (False, True):
        some = [
            i
            for i, decision in enumerate(decisions)
            if decision.label in CLASSES and (decision.label in CONTENT) is content
        ]
        if len(some) < 2:
            continue
        on = compared_input(x, pair if content else None)
        names, sums = distance_totals(model, on, [heads[i] for i in some])
        apart = sums.sum(dim=0).numpy() / max(1, int(distance_rows(on).sum()))
        place = {name: k for k, name in enumerate(names)}
        for i in some:
            alike = [
                head_label(*heads[j])
                for j in some
                if j != i
                and decisions[j].label == decisions[i].label
                and apart[place[heads[i]], place[heads[j]]] < cuts.redundant_distance
            ]
            found[i] = ",".join(alike)
    return found


def compared_input(x: ProbeInput, pair: PairedInput | None) -> ProbeInput:
    """Return a few short sequences to compare heads on: rows of both take memory for all heads."""
    tokens, real = (x.tokens, x.real) if pair is None else (pair.tokens, None)
    some = (slice(COMPARED), slice(COMPARED_TOKENS))
    if real is not None and not bool(real[some].any(dim=1).all()):
        some = (slice(COMPARED), slice(-COMPARED_TOKENS, None))  # padding stands on the left
    return ProbeInput(
        tokens=tokens[some],
        sources=None,
        special_ids=x.special_ids,
        causal=x.causal,
        real=None if real is None else real[some],
    )


def eigenvalues_of(model: ReadableModel, heads: Heads) -> PerHead:
    """Return the OV eigenvalue score of each head; NaN: its weights do not say."""
    layers = sorted({layer for layer, _ in heads})
    try:
        W_E = weight_of(part_of(model, "embed"), "W_E")
        W_U = weight_of(part_of(model, "unembed"), "W_U")
        if W_E.shape[0] != W_U.shape[1]:
            return np.full(len(heads), np.nan)
        ends = model_ends(W_E, W_U, part_of(model, "ln_final"))
        return np.concatenate([eigenvalue_scores(model, layer, ends) for layer in layers])
    except ValueError:
        return np.full(len(heads), np.nan)
