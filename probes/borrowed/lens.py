"""The logit lens: what the model would say if it stopped after each layer.

TransformerLens's `logit_lens` reads the streams, through the model's own last norm and
unembedding; here are the answers' numbers and the table.
"""

import numpy as np
import pandas as pd
import torch
from einops import reduce
from jaxtyping import Float64
from torch import Tensor
from transformer_lens.tools.analysis import logit_lens as read_streams

from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.borrowed.answers import Answers, require_asked, tokens_of
from probes.intervals import bootstrap_interval
from probes.reading.bridge import reading_mode
from probes.reading.observed_model import ReadableModel, model_device, provenance, require_finite
from probes.schemas.borrowed import LENS
from probes.tables import make_table

TOKENS_AT_ONCE = 2_048
"""Tokens whose streams of all layers are held at once, unless one sequence is longer."""

MEASURES = ("log_prob", "top1", "rank", "entropy")

Readings = Float64[Tensor, "measure layer batch pos"]


@torch.no_grad()
def logit_lens(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    *,
    by_position: bool = False,
    answers: Answers | None = None,
) -> pd.DataFrame:
    """Read the stream after each layer through the last norm and the unembedding.

    log_prob = ln p(answer) in nats, the last layer's the model's own; top1 = share of rows whose
    likeliest token is the answer; rank = how many tokens are likelier; entropy of the whole
    distribution, in nats. Means over the rows that count; the interval is log_prob's. Layer 0 is
    the embeddings alone, layer l what l blocks have made of them.

    Range: log_prob in nats, at most 0; top1 from 0 to 1; rank from 0; entropy in nats.

    Source: nostalgebraist 2020, Interpreting GPT: the logit lens; TransformerLens's lens.

    Caveat: Early streams are not written for the last norm: a row that is far from sure and one
    that is sure of something else look alike. Compare ranks and entropy.

    >>> from probes import repeated_batch
    >>> from probes.planted import PlantedHead, plant
    >>> copy = PlantedHead(kind="induction", writes="copy")
    >>> model = plant([[PlantedHead(kind="previous", writes="tokens")], [copy]]).model
    >>> table = logit_lens(model, repeated_batch(model, block=5))
    >>> table["log_prob"].round(2).tolist()  # layer 0, before the blocks, knows nothing: -ln 28
    [-3.33, -3.33, -2.39]

    Args:
        model: A HookedGPT, pruned or not, or a TransformerLens model; it is read in evaluation
            mode.
        batch_or_tokens: A task's batch, or plain tokens.
        by_position: One row for each position, and not only for all that count together.
        answers: What should come out; None: `Answers.of(batch_or_tokens)`.

    Raises:
        ValueError: The model's logits are not made of its last stream alone, no row counts, or a
            weight is no number.
    """
    require_finite(model)
    tokens = tokens_of(batch_or_tokens)
    asked = Answers.of(batch_or_tokens) if answers is None else answers
    require_asked(asked, tokens)
    step = max(1, TOKENS_AT_ONCE // tokens.shape[1])
    with reading_mode(model):
        parts = [
            lens_readings(model, tokens[start : start + step], asked[start : start + step])
            for start in range(0, len(tokens), step)
        ]
    readings, rows = torch.cat(parts, dim=2).numpy(), asked.rows.cpu().double().numpy()
    if by_position:
        counted = np.flatnonzero(rows.any(axis=0))
        groups = [(int(pos), readings[..., [pos]], rows[:, [pos]]) for pos in counted]
    else:
        groups = [(pd.NA, readings, rows)]
    frames = [group_columns(pos, values, some) for pos, values, some in groups]
    columns = {name: np.concatenate([frame[name] for frame in frames]) for name in LENS.names}
    return make_table(columns, LENS, provenance(model, tokens))


def lens_readings(model: ReadableModel, tokens: Tokens, answers: Answers) -> Readings:
    """Return the MEASURES of every row of some sequences, in float64 on the CPU."""
    device = model_device(model)
    found = read_streams(
        model,
        tokens.to(device),
        positions=None,
        targets=answers.right.to(device),
        return_type="log_probs",
    )
    ranks = found.rank_trajectory()
    measures = (found.values.squeeze(-1), ranks == 0, ranks, found.readout.entropy)
    return torch.stack([measure.cpu().double() for measure in measures])


def group_columns(
    pos: object,
    readings: Float64[np.ndarray, "measure layer batch pos"],
    rows: Float64[np.ndarray, "batch pos"],
) -> dict[str, np.ndarray]:
    """Return the columns of some positions taken together: one row a layer."""
    totals = reduce(readings * rows, "measure layer batch pos -> measure layer batch", "sum")
    counts, n_layers = rows.sum(axis=1), readings.shape[1]
    low, high = bootstrap_interval(totals[0].T, counts)
    means = dict(zip(MEASURES, totals.sum(axis=2) / counts.sum(), strict=True))
    same = {
        "pos": pos,
        "n_sequences": int((counts > 0).sum()),
        "n_rows": int(counts.sum()),
        "unit": "nats",
    }
    return {
        "layer": np.arange(n_layers),
        **means,
        "ci_low": low,
        "ci_high": high,
        **{name: np.full(n_layers, value, dtype=object) for name, value in same.items()},
    }
