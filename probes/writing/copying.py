"""Whether each head copies: does attending to a token make the model say that token?

Three answers, from weights alone and from a sample. What a head reads it reads through the norm
before attention, and what it writes reaches the logits through the last norm, directly: later
layers are left out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lab.checks import require, require_seed, require_whole
from lab.shapes import Tokens
from probes.attention.entropy import SILENT_BELOW
from probes.attention.targets import ProbeInput
from probes.reading.inputs import (
    LONGEST_BLOCK,
    distinct_ids,
    sizes_of,
    start_id,
    word_ids,
    words_of,
)
from probes.reading.observed_model import (
    ReadableModel,
    checked_input,
    head_ids,
    measured_layers,
    model_device,
    provenance,
    require_finite,
)
from probes.reading.pattern_reads import LayerReads
from probes.schemas.heads import COPYING
from probes.tables import rows_table
from probes.writing.head_weights import (
    block_of,
    output_weights,
    part_of,
    through_norm,
    value_weights,
    weight_of,
)

N_TOP = 5
"""A token is copied if it is among this many most likely tokens."""
MOST_TOP_IDS = 50
"""Ids of the sample that are followed to the logits: each costs an unembedding for every head."""
FEW_IDS = 4_096
"""Ids that a token's logit is compared with first."""
LOGITS_AT_ONCE = 2**24
"""Logits that are held at once: 64 MB in float32."""
IDS_AT_ONCE = 8_192
"""Columns of the unembedding that are taken to float64 at once."""

PerHead = Float64[np.ndarray, " head"]
PerSequence = Float64[Tensor, "batch head"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Ends:
    """The two ends of a model as its heads see them, in float64 on the CPU."""

    read_to_write: Float64[Tensor, "d_model d_model"]
    """W_U W_E, the last norm folded into W_U: what is written, to what is read of the same id."""
    mean_logit: Float64[Tensor, " d_model"]
    """Mean column of that W_U."""


SAMPLED = 10
"""Sequences of a sample that is drawn."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Token ids, and the residual stream at a position that holds nothing but one of them."""

    ids: Int[Tensor, " id"]
    """The ids, all different."""
    embedded: Float[Tensor, "1 id d_model"]
    """The stream before layer 0."""
    extended: Float[Tensor, "1 id d_model"]
    """The same with what the MLP of layer 0 adds to it."""


def copying_scores(
    model: ReadableModel,
    tokens: Tokens | None = None,
    *,
    n_sequences: int = SAMPLED,
    seed: int = 0,
) -> pd.DataFrame:
    """Score how much each head copies: one row per layer and head.

    eigenvalue = sum(lambda) / sum |lambda| over the eigenvalues of W_E W_V W_O W_U, in -1 .. 1: 1
    if all that is read of a token makes it likelier, -1 if less likely. Norms are folded in, but
    for their division (Elhage et al. 2021).

    copying, in -1 .. 1, on sequences of random tokens that never repeat: in row q the head raises
    the logit of token t, above its mean over the vocabulary, by r_t >= 0 (0 where it lowers it); C
    = 2 sum_k A'[q, k] r_{x_k} / sum_{t in sample} r_t - 1. The first position, where heads rest, is
    no part of the sample: A' is A without it, and rows are weighted by 1 - A[q, 0] (Olsson et al.
    2022; their text leaves room, this is ours).

    top5 = share of the sample's tokens that are among the 5 likeliest after the head alone has
    attended to them, through embedding, the MLP of layer 0 (but for the heads of layer 0) and the
    last norm (Wang et al. 2023). top5_chance = 5 / d_vocab.

    NaN: what the head cannot be asked, as when it writes nothing, and everything where inputs and
    outputs are different vocabularies.

    Range: eigenvalue and copying from -1 to 1; top5 from 0 to 1.

    Source: Elhage et al. 2021; Olsson et al. 2022; Wang et al. 2023.

    Caveat: Only the direct path is measured: what later layers make of the output does not show.
    copying depends on how sharply the head looks: a head that spreads evenly has 2 / q - 1 in row
    q, about -0.74 over 25 tokens, even if its weights copy perfectly. The eigenvalue score asks the
    weights alone, and may be high where no token comes out among the likeliest.

    >>> from probes.planted import PlantedHead, plant
    >>> copy = PlantedHead(kind="induction", writes="copy")
    >>> model = plant([[PlantedHead(kind="previous", writes="tokens")], [copy]]).model
    >>> copying_scores(model)["eigenvalue"].round(2).tolist()  # the first head writes no logits
    [nan, 1.0]

    Args:
        model: A HookedGPT, or a TransformerLens model that shows its weights head by head.
        tokens: The sample, after one position that does not count; None: drawn from the vocabulary.
        n_sequences: How many are drawn.
        seed: Seed of the draw.

    Raises:
        ValueError: The model does not show its weights head by head.
    """
    require_finite(model)
    if tokens is None:
        tokens = sample_tokens(model, n_sequences, seed)
    return copying_table(model, checked_input(model, tokens))


def copying_table(model: ReadableModel, x: ProbeInput) -> pd.DataFrame:
    """Return the table of `copying_scores` of a checked sample."""
    tokens = x.tokens
    W_E = weight_of(part_of(model, "embed"), "W_E")
    W_U = weight_of(part_of(model, "unembed"), "W_U")
    norm = part_of(model, "ln_final")
    comparable = W_E.shape[0] == W_U.shape[1]
    ends = model_ends(W_E, W_U, norm) if comparable else None
    sample = embedded_sample(model, tokens[:, 1:]) if comparable else None

    def measure(layer: int, reads: LayerReads, part: ProbeInput) -> tuple[np.ndarray, np.ndarray]:
        if ends is None:
            missing = np.full((2, len(part.tokens), reads.n_heads), np.nan)
            return missing[0], missing[1]
        words = through_norm(norm, W_U[:, part.tokens[:, 1:].flatten()])
        raised = words - ends.mean_logit.unsqueeze(1)
        width = part.tokens.shape[1] - 1
        directions = raised.T.unflatten(0, (len(part.tokens), width))
        found = copied_mass(reads, directions, output_weights(model, layer))
        return found[0].numpy(), found[1].numpy()

    rows: list[dict[str, Any]] = []
    for layer, found in measured_layers(model, x, measure).items():
        copied, weight = (np.concatenate(part) for part in zip(*found, strict=True))
        heads = head_ids(model, layer, copied.shape[1])
        with np.errstate(invalid="ignore", divide="ignore"):
            copying = np.nansum(copied, axis=0) / np.nansum(weight, axis=0)
        nothing = np.full(len(heads), np.nan)
        eigenvalue = nothing if ends is None else eigenvalue_scores(model, layer, ends)
        top = nothing if sample is None else top_shares(model, layer, sample)
        rows += [
            {
                "layer": layer,
                "head": head,
                "eigenvalue": eigenvalue[i],
                "copying": copying[i],
                "top5": top[i],
                "top5_chance": N_TOP / W_U.shape[1] if comparable else np.nan,
                "n_sequences": len(tokens),
                "n_tokens": tokens[:, 1:].numel(),
                "unit": "score",
            }
            for i, head in enumerate(heads)
        ]
    return rows_table(rows, COPYING, provenance(model, tokens))


def sample_tokens(model: ReadableModel, n_sequences: int = SAMPLED, seed: int = 0) -> Tokens:
    """Return sequences of different random tokens, each behind one position that does not count."""
    require_whole("n_sequences", n_sequences, 1)
    require_seed(seed)
    sizes, tokenizer = sizes_of(model), words_of(model)
    first = start_id(tokenizer, sizes.d_vocab)
    words = word_ids(sizes.d_vocab, tokenizer, first)
    length = min(LONGEST_BLOCK, sizes.n_ctx - 1, len(words))
    require(length >= 1, "n_ctx - 1 and the words of the vocabulary", "at least 1", length)
    drawn = torch.from_numpy(distinct_ids(words, n_sequences, length, seed))
    return torch.cat([drawn.new_full((n_sequences, 1), first), drawn], dim=1)


def model_ends(
    W_E: Float[Tensor, "d_vocab d_model"], W_U: Float[Tensor, "d_model d_vocab"], norm: Any
) -> Ends:
    """Return what the heads see of the two ends, a block of ids at a time."""
    width, n_ids = W_U.shape
    read_to_write = torch.zeros(width, width, dtype=torch.float64)
    mean_logit = torch.zeros(width, dtype=torch.float64)
    for start in range(0, n_ids, IDS_AT_ONCE):
        some = slice(start, start + IDS_AT_ONCE)
        words = through_norm(norm, W_U[:, some])
        read_to_write += words @ W_E[some].detach().cpu().double()
        mean_logit += words.sum(dim=1) / n_ids
    return Ends(read_to_write=read_to_write, mean_logit=mean_logit)


def eigenvalue_scores(model: ReadableModel, layer: int, ends: Ends) -> PerHead:
    """Return sum(lambda) / sum |lambda| of each head of a layer.

    The eigenvalues of W_E W_V W_O W_U other than 0 are those of the small W_O W_U W_E W_V.
    """
    reads = through_norm(part_of(block_of(model, layer), "ln1"), value_weights(model, layer)[0])
    writes = output_weights(model, layer).cpu().double()
    values = torch.linalg.eigvals(writes @ ends.read_to_write @ reads)
    total = values.abs().sum(dim=-1)
    return (values.sum(dim=-1).real / total.where(total > 0, torch.nan)).numpy()


def copied_mass(
    reads: LayerReads,
    directions: Float64[Tensor, "batch token d_model"],
    W_O: Float[Tensor, "head d_value d_model"],
) -> tuple[PerSequence, PerSequence]:
    """Return a layer's copying score on each sequence, times its rows' weight, and the weight.

    Args:
        reads: The layer, on one position that does not count and the tokens of the sample.
        directions: What raises the logit of each token of the sample, above the mean logit.
        W_O: Output weights of its heads.
    """
    z = reads.mean_value().cpu().double()[:, 1:]
    places = torch.arange(1, directions.shape[1] + 1, device=reads.device)
    rest = 1.0 - reads.cells(places, torch.zeros_like(places)).cpu().double()
    attention = reads.sink_free().pattern().cpu().double()[:, :, 1:, 1:]
    own = einsum(
        directions, W_O.cpu().double(), "batch token m, head value m -> batch head token value"
    )
    raised = einsum(z, own, "batch q head value, batch head token value -> batch head q token")
    raised = raised.relu()
    total = raised.sum(dim=-1)
    score = 2.0 * (attention * raised).sum(dim=-1) / total - 1.0
    counts = (total > 0) & (rest >= SILENT_BELOW)
    weight = rest.where(counts, 0.0)
    return (score.where(counts, 0.0) * weight).sum(dim=-1), weight.sum(dim=-1)


@torch.no_grad()
def embedded_sample(model: ReadableModel, tokens: Tokens) -> Sample:
    """Return the first different ids of a sample, as the heads of layer 0 and later ones see them.

    Positions are left out: the question is about tokens.
    """
    flat = tokens.flatten()
    ids = flat[first_places(flat)][:MOST_TOP_IDS].to(model_device(model))
    block = block_of(model, 0)
    embedded = part_of(model, "embed")(ids.unsqueeze(0))
    mlp = getattr(block, "mlp", None)
    extended = embedded if mlp is None else embedded + mlp(part_of(block, "ln2")(embedded))
    return Sample(ids=ids, embedded=embedded, extended=extended)


def first_places(ids: Int[Tensor, " place"]) -> Int[Tensor, " id"]:
    """Return the place where each different id first stands, in order."""
    _, first = np.unique(ids.cpu().numpy(), return_index=True)
    return torch.from_numpy(np.sort(first)).to(ids.device)


@torch.no_grad()
def top_shares(model: ReadableModel, layer: int, sample: Sample) -> PerHead:
    """Return the share of a sample's tokens that each head of a layer, alone, makes likeliest.

    A token counts if fewer than N_TOP other logits are as large as its own: where a head writes
    nothing all are equal, and none counts.
    """
    W_V, b_V = value_weights(model, layer)
    if not len(W_V):
        return np.zeros(0)
    state = sample.embedded if layer == 0 else sample.extended
    read = part_of(block_of(model, layer), "ln1")(state)[0].to(W_V.dtype)
    v = einsum(read, W_V, "token m, head m value -> head token value") + b_V.unsqueeze(1)
    written = (v @ output_weights(model, layer)).flatten(0, 1)
    stream = part_of(model, "ln_final")(written.unsqueeze(0))[0]
    wanted = sample.ids.repeat(len(W_V))
    unembed = part_of(model, "unembed")
    W_U, b_U = weight_of(unembed, "W_U"), getattr(unembed, "b_U", None)
    b_U = W_U.new_zeros(W_U.shape[1]) if b_U is None else b_U.detach()
    # Most tokens are beaten by five of a few ids already, and need not meet the others.
    few = beaten_by(stream, wanted, W_U, b_U, step=-(-W_U.shape[1] // FEW_IDS)) < N_TOP
    copied = few.clone()
    copied[few] = beaten_by(stream[few], wanted[few], W_U, b_U) < N_TOP
    return copied.unflatten(0, (len(W_V), -1)).double().mean(dim=1).cpu().numpy()


def beaten_by(
    stream: Float[Tensor, "row d_model"],
    ids: Int[Tensor, " row"],
    W_U: Float[Tensor, "d_model d_vocab"],
    b_U: Float[Tensor, " d_vocab"],
    step: int = 1,
) -> Int[Tensor, " row"]:
    """Return how many other logits of each row are as large as that of its id.

    Args:
        stream: What is unembedded.
        ids: An id for each row.
        W_U: The unembedding.
        b_U: Its bias.
        step: Compare with every step-th id only.
    """
    own = (stream * W_U[:, ids].T).sum(dim=1, keepdim=True) + b_U[ids].unsqueeze(1)
    W_U, b_U = W_U[:, ::step], b_U[::step]
    among = ids % step == 0
    counts = []
    for some in torch.arange(len(ids), device=ids.device).split(
        max(1, LOGITS_AT_ONCE // W_U.shape[1])
    ):
        larger = stream[some] @ W_U + b_U >= own[some]
        itself = larger.gather(1, (ids[some] // step).clamp(max=W_U.shape[1] - 1).unsqueeze(1))
        counts.append(larger.sum(dim=1) - (itself.squeeze(1) & among[some]).long())
    return torch.cat(counts) if counts else ids.clone()
