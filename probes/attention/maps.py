"""Whole attention maps of single sequences, for pictures and first screens.

Here, and only here, a probe builds the matrix: for one short sequence at a time.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float

from lab.naming import head_label, unknown_name
from lab.shapes import Tokens
from lab.tasks.base import Batch
from lab.vocab import Vocab
from probes.reading.observed_model import (
    ReadableModel,
    head_ids,
    model_device,
    observe_layers,
    probe_input,
    provenance,
    vocab_of,
)
from probes.reading.pattern_reads import LayerReads
from probes.schemas.heads import ATTENTION
from probes.tables import make_table

LONGEST = 128
"""Positions of the longest sequence whose maps are drawn: beyond, no screen shows its cells."""

Map = Float[np.ndarray, "query_pos key_pos"]


def attention_map(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    *,
    layer: int,
    head: int,
    vocab: Vocab | None = None,
    sequence: int = 0,
) -> pd.DataFrame:
    """Return one head's whole map on one sequence: one row per query and key that it sees.

    Args:
        model: A HookedGPT or any TransformerLens model.
        batch_or_tokens: A task's batch, whose source cells are marked, or plain tokens.
        layer: The head's layer.
        head: The head.
        vocab: Names of the token ids; None: those of the model's tokenizer, or the ids themselves.
        sequence: Which sequence of the batch.

    Raises:
        ValueError: There is no such head or sequence, or the sequence is too long to draw.
    """
    x = probe_input(model, batch_or_tokens)
    if not 0 <= sequence < len(x.tokens):
        raise ValueError(
            f"sequence must be from 0 to {len(x.tokens) - 1}, the sequences given, got {sequence}"
        )
    tokens = x.tokens[sequence : sequence + 1]
    maps = sequence_maps(model, tokens)
    if (layer, head) not in maps:
        known = [head_label(*pair) for pair in maps]
        raise ValueError(unknown_name("head", head_label(layer, head), known))
    n_pos = tokens.shape[1]
    rows, keys = np.tril_indices(n_pos) if x.causal else np.indices((n_pos, n_pos)).reshape(2, -1)
    names = token_labels(tokens[0].tolist(), vocab_of(model, vocab))
    labels = np.array(names, dtype=object)
    source = np.zeros((tokens.shape[1], tokens.shape[1]), dtype=bool)
    if x.sources is not None:
        for row, places in enumerate(x.sources[sequence].tolist()):
            source[row, [place for place in places if place >= 0]] = True
    columns = {
        "layer": np.full(len(rows), layer),
        "head": np.full(len(rows), head),
        "query_pos": rows,
        "key_pos": keys,
        "query_token": labels[rows],
        "key_token": labels[keys],
        "probability": maps[layer, head][rows, keys],
        "is_source": source[rows, keys],
    }
    return make_table(columns, ATTENTION, provenance(model, tokens))


def sequence_maps(model: ReadableModel, tokens: Tokens) -> dict[tuple[int, int], Map]:
    """Return the whole map of every head on the one sequence given.

    Raises:
        ValueError: The sequence is too long to draw.
    """
    if tokens.shape[1] > LONGEST:
        raise ValueError(
            f"a sequence to draw must have at most {LONGEST} tokens, got {tokens.shape[1]}; "
            "cut it, or use score_heads and entropy_profile, which need no picture"
        )
    maps: dict[tuple[int, int], Map] = {}

    def observe(layer: int, reads: LayerReads) -> None:
        pattern = reads.pattern()[0].cpu().double().numpy()
        ids = head_ids(model, layer, len(pattern))
        maps.update({(layer, head): own for head, own in zip(ids, pattern, strict=True)})

    observe_layers(model, tokens.to(model_device(model)), observe)
    return maps


def token_labels(ids: list[int], vocab: Vocab | None) -> list[str]:
    """Return what to write for each token."""
    return [str(i) for i in ids] if vocab is None else vocab.decode(ids)
