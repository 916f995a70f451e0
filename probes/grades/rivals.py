"""How others name heads: TransformerLens's detector, and the bare means that courses teach.

Both threshold a mean of attention at 0.4, without a chance level, a control, an interval or a
rival. They are here to be graded beside `probes.labels.head_labels`, on the same
models and sequences.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from transformer_lens.head_detector import detect_head

from lab.hooked_gpt import HookedGPT
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.head_classes import DISTANCES, HEAD_CLASSES, STEPS
from probes.reading.inputs import PairedInput

CUSTOMARY_CUT = 0.4
"""The threshold of ARENA's exercises and of most reports."""
DETECTOR_PROMPTS = 4
"""Sequences that the detector sees; it takes them one at a time."""

Scores = dict[str, Float64[Tensor, "layer head"]]


@torch.no_grad()
def detector_scores(model: HookedGPT, tokens: Tokens) -> Scores:
    """Return detect_head's score of every head for each class that it knows.

    Its "mul" measure: attention on the pattern's cells over all attention, of all rows; mean over
    sequences.
    """
    total: Scores = {}
    for one in tokens[:DETECTOR_PROMPTS]:
        _, cache = model.run_with_cache(
            one.unsqueeze(0), remove_batch_dim=True, names_filter=is_pattern
        )
        for own in HEAD_CLASSES:
            if own.detector:
                found = detect_head(model, one.unsqueeze(0), own.detector, cache=cache).double()  # pyright: ignore[reportArgumentType]
                total[own.name] = total.get(own.name, torch.zeros_like(found)) + found
    return {name: sum_ / len(tokens[:DETECTOR_PROMPTS]) for name, sum_ in total.items()}


@torch.no_grad()
def bare_means(model: HookedGPT, batch: Batch, pair: PairedInput) -> Scores:
    """Return means of diagonals of the attention matrix, as courses teach them.

    current, previous, first: the diagonal, the one below it and the first column, row 0 included,
    on the task's sequences; duplicate, induction, preceder: the diagonals -S, -S + 1 and -S - 1 of
    a repeated block; reversal (or another task): the cells of the answers.

    Source: the attention detectors of ARENA 3.0, chapter 1.2.
    """
    S = pair.block
    repeated = patterns(model, pair.tokens)
    given = patterns(model, batch.tokens)
    sequence, row, column = (batch.sources >= 0).nonzero(as_tuple=True)
    answers = given[:, sequence, :, row, batch.sources[sequence, row, column]]

    def diagonal(pattern: Tensor, offset: int) -> Tensor:
        return pattern.diagonal(-offset, dim1=-2, dim2=-1).mean(dim=(1, 3))

    found = {
        **{name: diagonal(given, distance) for name, distance in DISTANCES.items()},
        "first": given[..., 0].mean(dim=(1, 3)),
        **{name: diagonal(repeated, S - step) for name, step in STEPS.items()},
        "reversal": answers.mean(dim=0),
    }
    return {name: score.double() for name, score in found.items()}


def customary_label(scores: Mapping[str, float]) -> str:
    """Return the class of the largest score if that reaches the customary threshold, else none.

    >>> customary_label({"previous": 0.45, "current": 0.6}), customary_label({"previous": 0.3})
    ('current', 'none')
    """
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= CUSTOMARY_CUT else "none"


def patterns(
    model: HookedGPT, tokens: Tokens
) -> Float[Tensor, "layer batch head query_pos key_pos"]:
    """Return the whole attention matrix of every head."""
    _, cache = model.run_with_cache(tokens, names_filter=is_pattern)
    return torch.stack([cache["pattern", layer] for layer in range(model.cfg.n_layers)])


def is_pattern(name: str) -> bool:
    """Return whether a hook point holds an attention matrix."""
    return name.endswith("hook_pattern")
