"""How the runs of a sweep are computed: a chunk of sets at a time, on some of the sequences.

The whole model runs once on the sequences, and every set of heads continues that pass behind the
attention of the lowest layer that it touches. A model with hooks, or with parts that are not ours,
runs from the beginning instead, once a set.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from lab.config import ModelConfig
from lab.gates import GateTensors
from lab.hooked_gpt import HookedGPT
from lab.partial_pass import Edits, WholePass, can_be_entered, edited_rows, whole_pass
from lab.shapes import PositionMask
from lab.tasks.base import Batch
from probes.ablation.metrics import Metric, MetricFunction, require_a_number_a_row

HeadSet = tuple[tuple[int, int], ...]
"""(layer, head) pairs in the ids of the original model; the empty set is the whole model."""
Fill = Float[Tensor, "layer 1 #pos head d_head"]
RunTotals = Float64[np.ndarray, "sequence run metric"]

TOKENS_AT_ONCE = 1_024
"""Tokens of all runs of a chunk on a processor: more would not stay in its caches."""
TOKENS_ON_GPU = 65_536
"""The same on a GPU, which would be idle with fewer."""
LOGITS_AT_ONCE = 2**20
"""Logits that are read at once."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What is computed at once: some sets, on some sequences, with one fill."""

    sequences: tuple[int, int]
    """First sequence and the one behind the last."""
    fill: int
    """Which of the fills."""
    sets: tuple[int, ...]
    """Numbers of the sets, which all begin in one layer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """What every chunk of a sweep needs to know."""

    model: HookedGPT
    batch: Batch
    real: PositionMask | None
    """True at real tokens; None: all are."""
    sets: tuple[HeadSet, ...]
    """Different ones; the first is empty: the whole model."""
    value: float
    positions: tuple[int, ...] | None
    fills: tuple[Fill | None, ...]
    metrics: tuple[Metric, ...]
    memory: int
    """Bytes that activations may take."""

    def gates(self, sets: Sequence[HeadSet], fill: int) -> GateTensors:
        """Return one gate a run for these sets; their batch axis counts runs."""
        n_pos = self.batch.tokens.shape[1]
        g = set_gates(self.model.config, sets, self.value, self.positions, n_pos)
        return GateTensors(g=g, fill=self.fills[fill])


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """The rows of some sequences that count, and what the whole model says there."""

    sequence: Int[Tensor, " row"]
    """Which of the sequences a row is of."""
    counts: Int[Tensor, " sequence"]
    """Rows of each sequence."""
    targets: Int[Tensor, " row"]
    baseline: Float[Tensor, "row d_vocab"]

    def totals(
        self,
        logits: Float[Tensor, "row d_vocab"],
        metrics: tuple[Metric, ...],
        bias: Float[Tensor, " d_vocab"] | None = None,
    ) -> Float64[np.ndarray, "sequence metric"]:
        """Return every metric summed over the scored rows of each sequence.

        Args:
            logits: What some run says there.
            metrics: The metrics.
            bias: What is still to be added to every row of logits.
        """
        values = torch.zeros(len(logits), len(metrics), dtype=torch.float64, device=logits.device)
        # A few rows at a time, so that one metric finds in the cache what the one before it read.
        step = max(1, LOGITS_AT_ONCE // logits.shape[1])
        for start in range(0, len(logits), step):
            rows = slice(start, start + step)
            read = logits[rows] if bias is None else logits[rows] + bias
            read = read.to(self.baseline.dtype)
            found: dict[MetricFunction, Tensor] = {}
            for i, metric in enumerate(metrics):
                if metric.of_rows not in found:  # two of ours are means of the same numbers
                    new = metric.of_rows(read, self.targets[rows], self.baseline[rows])
                    require_a_number_a_row(metric, new, len(read))
                    found[metric.of_rows] = new
                values[rows, i] = found[metric.of_rows].double()
        totals = values.new_zeros(len(self.counts), len(metrics))
        totals.index_add_(0, self.sequence, values)
        for i, metric in enumerate(metrics):
            if metric.per == "sequence":  # a sequence without a scored row is not correct either
                totals[:, i] = ((totals[:, i] == self.counts) & (self.counts > 0)).double()
        return totals.cpu().numpy()


class SequenceRuns:
    """The runs on some sequences: the whole model's pass is kept, chunks continue it."""

    def __init__(self, request: Request, sequences: tuple[int, int]) -> None:
        """Run the whole model."""
        self.request, self.sequences = request, sequences
        device = request.model.device
        some = slice(*sequences)
        self.batch = request.batch[some].to(device)
        self.real = None if request.real is None else request.real[some].to(device)
        rows = self.batch.loss_mask
        self.whole = None
        if can_be_entered(request.model):
            self.whole = self.enter()
            normalised = self.normalised(self.whole.rows).unsqueeze(0)
            baseline = request.model.unembed(normalised).squeeze(0)
        else:
            baseline = self.gated_logits(None)
        self.scored = Scored(
            sequence=rows.nonzero()[:, 0],
            counts=rows.sum(dim=1),
            targets=self.batch.tokens.roll(-1, dims=1)[rows],
            baseline=baseline.to(torch.promote_types(baseline.dtype, torch.float32)),
        )
        self.baseline = self.scored.totals(self.scored.baseline, request.metrics)

    def enter(self) -> WholePass:
        """Run the whole model up to the last position that counts, and keep it."""
        first, end = row_span(self.batch.loss_mask)
        if self.request.model.config.attention_dir != "causal":
            end = self.batch.tokens.shape[1]  # every row sees the tokens behind it
        real = None if self.real is None else self.real[:, :end]
        return whole_pass(self.request.model, self.batch.tokens[:, :end], real, first)

    def totals(self, chunk: Chunk) -> RunTotals:
        """Return the metrics of each sequence and set of a chunk."""
        sets = [self.request.sets[i] for i in chunk.sets]
        if not sets[0]:
            runs = [self.baseline]
        elif self.whole is None:
            gates = (self.request.gates([heads], chunk.fill) for heads in sets)
            runs = [self.scored.totals(self.gated_logits(g), self.request.metrics) for g in gates]
        else:
            runs = self.entered(self.whole, sets, chunk.fill)
        return np.stack(runs, axis=1)

    def entered(self, whole: WholePass, sets: list[HeadSet], fill: int) -> list[np.ndarray]:
        """Return the totals of some sets that begin in one layer."""
        layer = sets[0][0][0]
        edits, moved = layer_edits(self.request, whole, layer, sets, fill)
        runs = [self.baseline] * len(sets)
        if not moved:
            return runs
        gates = None
        if any(heads[-1][0] > layer for heads in sets):
            gates = repeated(self.request.gates([sets[i] for i in moved], fill), len(self.batch))
        rows = edited_rows(whole, layer, edits, gates)
        unembed = self.request.model.unembed
        # Added while a few rows are in the cache: in the product it is a pass through memory.
        bias = unembed.b_U if bool(unembed.b_U.any()) else None
        for i, own in zip(moved, rows, strict=True):
            logits = self.normalised(own) @ unembed.W_U
            runs[i] = self.scored.totals(logits, self.request.metrics, bias)
        return runs

    def scored_stream(
        self, rows: Float[Tensor, "batch tail d_model"]
    ) -> Float[Tensor, "row d_model"]:
        """Return the stream of the rows that count, from that of the rows from `first` on."""
        first, end = row_span(self.batch.loss_mask)
        return rows[:, : end - first][self.batch.loss_mask[:, first:end]]

    def normalised(self, rows: Float[Tensor, "batch tail d_model"]) -> Float[Tensor, "row d_model"]:
        """Return what is unembedded of the rows that count, out of all from `first` on."""
        return self.request.model.ln_final(self.scored_stream(rows).unsqueeze(0)).squeeze(0)

    def gated_logits(self, gates: GateTensors | None) -> Float[Tensor, "row d_vocab"]:
        """Return the logits of the rows that count from a pass through the whole model."""
        logits = self.request.model.forward(
            self.batch.tokens, gates=gates, attention_mask=self.real
        )
        return logits[self.batch.loss_mask]


def layer_edits(
    request: Request, whole: WholePass, layer: int, sets: list[HeadSet], fill: int
) -> tuple[Edits, list[int]]:
    """Return what ablation adds to a layer's attention, and the sets for which it is anything.

    A head that writes nothing, or what the fill writes, changes nothing: unless its set goes on in
    layers above, nothing has to run.
    """
    attn, half = request.model.blocks[layer].attn, whole.layers[layer]
    everything = tuple((layer, head) for head in attn.head_ids)
    gates = request.gates([everything], fill).like(half.z)
    dz = gates.edit(layer, half.z, whole.positions_in(layer), attn.head_ids)
    edits, moved = [], []
    for i, heads in enumerate(sets):
        own = [attn.head_ids.index(head) for at, head in heads if at == layer]
        edit = dz[:, :, own].flatten(2) @ attn.W_O[own].flatten(0, 1)
        if heads[-1][0] > layer or bool(edit.any()):
            edits.append(edit)
            moved.append(i)
    return torch.stack(edits) if edits else dz.new_zeros(0, *half.residual.shape), moved


def set_gates(
    config: ModelConfig,
    sets: Sequence[HeadSet],
    value: float,
    positions: tuple[int, ...] | None,
    n_pos: int,
) -> Float[Tensor, "layer run #pos head"]:
    """Return one gate per run for sets of heads, at some positions or at all of them."""
    where: slice | list[int] = slice(None)
    if positions is not None:  # n_ctx of them would take memory that few sequences need
        where = [position for position in positions if position < n_pos]
    shape = (config.n_layers, len(sets), 1 if positions is None else n_pos, config.n_heads)
    g = torch.ones(shape, dtype=torch.float64)
    for run, heads in enumerate(sets):
        for layer, head in heads:
            g[layer, run, where, head] = value
    return g


def repeated(gates: GateTensors, batch: int) -> GateTensors:
    """Return gates of some runs as gates of all sequences of each."""
    return GateTensors(g=gates.g.repeat_interleave(batch, dim=1), fill=gates.fill)


def row_span(rows: Bool[Tensor, "sequence pos"]) -> tuple[int, int]:
    """Return the first position that counts in some sequence, and the one behind the last."""
    found = rows.any(dim=0).nonzero().flatten()
    return (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 1)


def planned(request: Request) -> Iterator[Chunk]:
    """Yield the chunks of a sweep: the whole model first, then the sets layer by layer."""
    config = request.model.config
    n_sequences, n_pos = request.batch.tokens.shape
    itemsize = request.model.cfg.dtype.itemsize
    most = TOKENS_AT_ONCE if request.model.device.type == "cpu" else TOKENS_ON_GPU
    step = max(1, min(n_sequences, request.memory // 2 // sequence_bytes(config, n_pos, itemsize)))
    by_layer: dict[int, list[int]] = {}
    for i, heads in enumerate(request.sets[1:], start=1):
        by_layer.setdefault(heads[0][0], []).append(i)
    for start in range(0, n_sequences, step):
        sequences = (start, min(start + step, n_sequences))
        tokens = (sequences[1] - start) * n_pos
        room = request.memory // 2 // (tokens * token_bytes(config, itemsize))
        runs = max(1, min(room, most // tokens))
        yield Chunk(sequences=sequences, fill=0, sets=(0,))
        for fill in range(len(request.fills)):
            for _, members in sorted(by_layer.items()):
                for first in range(0, len(members), runs):
                    some = tuple(members[first : first + runs])
                    yield Chunk(sequences=sequences, fill=fill, sets=some)


def sequence_bytes(config: ModelConfig, n_pos: int, itemsize: int) -> int:
    """Return the memory of one sequence: z and stream of every layer, logits; and one run."""
    kept = config.n_layers * (config.d_model + config.n_heads * config.head_width)
    return n_pos * (itemsize * (kept + 3 * config.vocab_out) + token_bytes(config, itemsize))


def token_bytes(config: ModelConfig, itemsize: int) -> int:
    """Return what one token of a run takes at most: a few copies of the stream, and the MLP."""
    mlp = 0 if config.attn_only else 3 * config.mlp_width
    return itemsize * (8 * config.d_model + mlp)
