"""Edge attribution: which part of the model feeds which, by one gradient.

TransformerLens's `attribution_patch` estimates the edges of each pair of sequences; here they are
summed over positions, with intervals over pairs, in one table. Exact effects of feeders are
`probes.feeders.scores`'s, and what the weights alone say is `probes.feeders.composition`'s.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from torch import nn
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    Node,
    attribution_patch,
)

from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.borrowed.answers import Answers, asked_pairs, tokens_of
from probes.borrowed.patching import pair_provenance
from probes.intervals import bootstrap_interval
from probes.reading.bridge import bridge_setting, reading_mode
from probes.reading.observed_model import ReadableModel, config_of, head_ids, require_differentiable
from probes.schemas.borrowed import EDGES
from probes.tables import make_table

WRITERS = {"embed": "embed", "attn_head_out": "head", "mlp_out": "mlp"}
READERS = {"q_input": "q", "k_input": "k", "v_input": "v", "mlp_in": "mlp", "logits": "logits"}
"""What TransformerLens's kinds of node are called in the table."""

EdgeKey = tuple[str, int | None, int | None, str, int | None, int | None]
"""Kind, layer and head of the writer, then of the reader; heads by their place in the layer."""


@torch.inference_mode(False)
def edge_attribution(
    model: ReadableModel,
    clean: Batch | Tokens,
    corrupt: Batch | Tokens,
    *,
    answers: Answers | None = None,
) -> pd.DataFrame:
    """Estimate what each edge brings back of the clean answers: one row a writer and reader.

    score = (w_clean - w_corrupt) . dM/d(input of the reader), in logits, summed over positions,
    mean over the pairs in which a row counts: w is what the writer adds to the stream, M the
    answers' logits of the corrupt run. A first-order estimate: it misses what saturates. The scores
    of a writer's edges sum to the estimate for the writer.

    Range: logits, with their sign.

    Source: Syed, Rager and Conmy 2023, Attribution patching outperforms automated circuit
    discovery.

    Caveat: First order: it misses what saturates. Heads that share keys, models without MLPs and
    bridges that do not fork their stream have no such edges.

    Args:
        model: A HookedGPT, or a TransformerLens model that forks the stream for each head's q, k
            and v; with MLPs, and as many key heads as heads. It is read in evaluation mode.
        clean: The sequences whose activations are taken.
        corrupt: As many of the same length.
        answers: What comes back; None: `Answers.between(clean, corrupt)`.

    Raises:
        ValueError: The sequences do not pair up, or the model does not tell its edges apart.
    """
    require_edges(model)
    require_differentiable(model)
    good, bad, asked = asked_pairs(model, clean, corrupt, answers)
    pairs = [
        edge_scores(model, good[one], bad[one], asked[one])
        for one in (slice(i, i + 1) for i in range(len(good)))
    ]
    edges = list(pairs[0])
    scores = np.array([[pair[edge] for edge in edges] for pair in pairs])
    low, high = bootstrap_interval(scores, np.ones(len(pairs)))
    columns = {
        "writer": [edge[0] for edge in edges],
        "writer_layer": [edge[1] for edge in edges],
        "writer_head": [original_head(model, *edge[1:3]) for edge in edges],
        "reader": [edge[3] for edge in edges],
        "reader_layer": [edge[4] for edge in edges],
        "reader_head": [original_head(model, *edge[4:]) for edge in edges],
        "score": scores.mean(axis=0),
        "ci_low": low,
        "ci_high": high,
        "n_sequences": np.full(len(edges), len(pairs)),
        "unit": ["logits"] * len(edges),
    }
    about = pair_provenance(model, tokens_of(clean), tokens_of(corrupt))
    return make_table(columns, EDGES, about)


def require_edges(model: ReadableModel) -> None:
    """Reject models that TransformerLens rejects with a long message or with none.

    Raises:
        ValueError: The model has no MLPs, a layer without heads, or heads that share keys.
    """
    config = config_of(model)
    got = None
    if bridge_setting(model, "attn_only"):
        got = "a model without MLPs"
    elif config is not None and not all(map(config.n_heads_of, range(config.n_layers))):
        got = "a model with a layer whose heads are all pruned"
    elif config is not None and config.kv_heads != config.n_heads:
        got = "a model whose heads share keys and values"
    if got is not None:
        raise ValueError(
            f"a model must have heads and an MLP in every layer for edge attribution, got {got}; "
            "patch_activations and feeder_scores take it"
        )


def edge_scores(
    model: ReadableModel, clean: Tokens, corrupt: Tokens, answers: Answers
) -> dict[EdgeKey, float]:
    """Return the edges of one pair, summed over positions.

    Raises:
        ValueError: The model does not show its heads' inputs apart.
    """
    try:
        with torch.enable_grad(), reading_mode(model), gradients_to_weights(model):
            found = attribution_patch(
                model,
                clean,
                corrupt,
                lambda logits: answers(logits)[0],
                EdgeAttributionConfig(granularity="edge"),
            )
    except NotImplementedError:  # of a bridge whose set_use_split_qkv_input cannot fork
        raise ValueError(
            "a model must fork its stream for the q, k and v of each head for edge attribution, "
            f"got a {type(model).__name__} that does not; load the weights with "
            "HookedGPT.from_pretrained"
        ) from None
    summed: dict[EdgeKey, float] = defaultdict(float)
    for (writer, reader), score in found.edge_scores.items():
        key = (*end_of(writer, WRITERS), *end_of(reader, READERS))
        summed[key] += score
    return summed


@contextmanager
def gradients_to_weights(model: ReadableModel) -> Iterator[None]:
    """Let gradients flow in a model whose weights are frozen; afterwards they are again."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    frozen = [weight for weight in weights if not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def end_of(node: Node, kinds: Mapping[str, str]) -> tuple[str, int | None, int | None]:
    """Return kind, layer and head of one end of an edge."""
    kind = kinds[node.kind]
    return kind, None if kind == "logits" else node.layer, node.head


def original_head(model: ReadableModel, layer: int | None, head: int | None) -> int | None:
    """Return a head's original id, which in a pruned model is not its place in the layer."""
    if layer is None or head is None:
        return None
    return head_ids(model, layer, head + 1)[head]
