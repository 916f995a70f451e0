"""How much of a head's effect the rest of the model makes up for: direct effect less total effect.

When a head goes, later layers see its absence and may do its work, and the last norm divides by
less. The direct effect is what the head's own writing is worth at the end of the stream, with
everything between left as it was; the total effect is the true cost of its ablation.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lab.checks import require
from lab.hooked_gpt import HookedGPT
from lab.naming import head_label
from lab.norms import LayerNorm, NoNorm, Norm
from lab.partial_pass import WholePass, can_be_entered, edited_rows
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.ablation.metrics import Metric, MetricFunction
from probes.ablation.sweep import Ablation, known_sets, row_counts, sweep_request
from probes.ablation.sweep_passes import (
    HeadSet,
    Request,
    SequenceRuns,
    layer_edits,
    planned,
    repeated,
)
from probes.execution import Execution
from probes.intervals import bootstrap_interval, mean_over_rows
from probes.reading.observed_model import provenance, require_gates
from probes.schemas.first_order import SELF_REPAIR
from probes.tables import rows_table

NORMS = ("free", "frozen")
"""Whether the last norm divides by what is there, or by what was there in the whole model."""

Stream = Float[Tensor, "row d_model"]
Runs = Float64[np.ndarray, "sequence set norm path metric"]
"""path 0: the direct effect, path 1: the total one."""


def repair_split(
    model: HookedGPT,
    batch: Batch | Tokens,
    sets: Iterable[Iterable[Sequence[int]]] | None = None,
    *,
    ablation: Ablation | None = None,
    metrics: Iterable[str | MetricFunction] = ("margin", "loss"),
    attention_mask: GivenMask | None = None,
    execution: Execution | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Split what heads are worth into what is lost and what is made up for.

    One row per set, metric and norm. Effects say how much worse the metric becomes: a loss rises, a
    margin (or a metric of your own) falls. direct: the head's writing is exchanged at the end of
    the stream only, total: it is ablated, and all that follows reacts. repair = direct - total:
    positive where others replace the head, negative where most of its work is done through
    later layers, which fail with it.
    norm: with "frozen" the last norm divides by what it divided by in the whole model, in both
    paths; what the last norm alone makes up for is direct (frozen) - direct (free).

    Range: the metric's unit, with its sign.

    Source: McGrath et al. 2023, The hydra effect; Rushing and Nanda 2024, Explorations of
    self-repair in language models.

    Caveat: The direct effect of a head that works through later layers is small. Its repair is then
    negative, which does not mean that nothing is repaired.

    Args:
        model: A HookedGPT without hooks; it is left as it is.
        batch: Sequences of a task, or plain tokens, where every next token is scored.
        sets: Sets of (layer, head) pairs that are ablated together; None: every head alone.
        ablation: What takes the place of a head's z; None: zeros.
        metrics: Names out of METRICS in `probes.ablation.metrics`, or functions of the same form.
        attention_mask: True at real tokens; rows at padding, or that predict it, do not count.
        execution: Memory and progress of the runs; no ledger or processes of your own.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: A model with hooks or foreign parts, no such head, an empty set, or an unknown
            metric.
    """
    require_gates(model)
    if not can_be_entered(model):
        raise ValueError(
            "a model whose stream is edited at its end must be a plain HookedGPT without hooks, "
            "got one with hooks or parts of its own; call model.reset_hooks(), or load its "
            "weights into a HookedGPT of the same config"
        )
    ablation = Ablation() if ablation is None else ablation
    execution = Execution() if execution is None else execution
    execution.require_default("repair_split", "ledger", "processes")
    singles = [[head] for head in model.config.heads()]
    wanted = known_sets(model, singles if sets is None else sets, ablation)
    require(all(wanted), "a set of heads", "at least one (layer, head) pair", ())
    request = sweep_request(
        model,
        batch,
        wanted,
        ablation=ablation,
        metrics=metrics,
        attention_mask=attention_mask,
        memory=execution.memory,
    )
    baseline, runs = repair_runs(request, execution)
    counts = row_counts(request.batch, request.metrics)
    places = {heads: i for i, heads in enumerate(request.sets[1:])}
    rows = [
        {
            "layer": heads[0][0],
            "head": heads[0][1] if len(heads) == 1 else None,
            "heads": ",".join(head_label(layer, head) for layer, head in heads),
            "metric": metric.name,
            "mode": ablation.mode,
            "norm": norm,
            "n_sequences": int(np.count_nonzero(counts[:, 0])),
            "unit": metric.unit,
            **split(baseline[:, j], runs[:, places[heads], i, :, j], counts[:, j], metric, seed),
        }
        for heads in wanted
        for j, metric in enumerate(request.metrics)
        for i, norm in enumerate(NORMS)
    ]
    about = {"bootstrap_seed": seed, "ablation": ablation.to_dict()}
    tokens = request.batch.tokens
    return rows_table(rows, SELF_REPAIR, {**provenance(model, tokens), **about})


def split(
    baseline: Float64[np.ndarray, " sequence"],
    runs: Float64[np.ndarray, "sequence path"],
    counts: Float64[np.ndarray, " sequence"],
    metric: Metric,
    seed: int,
) -> dict[str, float]:
    """Return one metric's direct and total effect, and what is repaired, with its interval."""
    worse = runs - baseline[:, None]
    if metric.better != "lower":
        worse = -worse
    repair = worse[:, :1] - worse[:, 1:]
    low, high = bootstrap_interval(repair, counts, seed=seed)
    numbers = np.concatenate([baseline[:, None], worse, repair], axis=1)
    names = ("baseline", "direct", "total", "repair")
    return {
        **dict(zip(names, mean_over_rows(numbers, counts), strict=True)),
        "ci_low": low[0],
        "ci_high": high[0],
    }


@torch.no_grad()
def repair_runs(
    request: Request, execution: Execution
) -> tuple[Float64[np.ndarray, "sequence metric"], Runs]:
    """Return every sequence's metrics, of the whole model and of both paths of each set."""
    chunks = list(planned(request))
    n_sequences, n_sets, n_metrics = len(request.batch), len(request.sets), len(request.metrics)
    baseline = np.zeros((n_sequences, n_metrics))
    found = np.zeros((n_sequences, n_sets, len(NORMS), 2, n_metrics))
    some: SequenceRuns | None = None
    done, everything = 0, sum(len(chunk.sets) for chunk in chunks)
    for chunk in chunks:
        rows = slice(*chunk.sequences)
        if some is None or some.sequences != chunk.sequences:
            some = None  # before the next ones take as much memory
            some = SequenceRuns(request, chunk.sequences)
        if chunk.sets == (0,):
            baseline[rows] = some.baseline
        else:
            sets = [request.sets[i] for i in chunk.sets]
            found[rows, list(chunk.sets)] += paths_of(some, sets, chunk.fill)
        done += len(chunk.sets)
        execution.tell(done, everything)
    return baseline, found[:, 1:] / len(request.fills)


def paths_of(runs: SequenceRuns, sets: list[HeadSet], fill: int) -> Runs:
    """Return the metrics of both paths of some sets that begin in one layer."""
    request, whole = runs.request, runs.whole
    assert whole is not None  # repair_split asked
    layer = sets[0][0][0]
    edits, moved = layer_edits(request, whole, layer, sets, fill)
    nothing = np.broadcast_to(
        runs.baseline[:, None, None], (len(runs.batch), len(NORMS), 2, len(request.metrics))
    )
    found = np.repeat(nothing[:, None], len(sets), axis=1)
    clean = runs.scored_stream(whole.rows)
    if not moved or not len(clean):
        return found
    gates = None
    if any(heads[-1][0] > layer for heads in sets):
        gates = repeated(request.gates([sets[i] for i in moved], fill), len(runs.batch))
    for i, ablated in zip(moved, edited_rows(whole, layer, edits, gates), strict=True):
        direct = clean + runs.scored_stream(written_edit(request, whole, sets[i], fill))
        for path, edited in enumerate((direct, runs.scored_stream(ablated))):
            for norm, kind in enumerate(NORMS):
                normalised = last_norm(request.model.ln_final, clean, edited, kind)
                logits = request.model.unembed(normalised.unsqueeze(0)).squeeze(0)
                found[:, i, norm, path] = runs.scored.totals(logits, request.metrics)
    return found


def written_edit(
    request: Request, whole: WholePass, heads: HeadSet, fill: int
) -> Float[Tensor, "batch tail d_model"]:
    """Return what ablating a set changes in what its heads write, layers as in the whole model."""
    total = torch.zeros_like(whole.rows)
    for layer in sorted({layer for layer, _ in heads}):
        own = tuple(head for head in heads if head[0] == layer)
        edits, _ = layer_edits(request, whole, layer, [own], fill)
        if len(edits):
            total = total + edits[0][:, -whole.rows.shape[1] :]
    return total


def last_norm(norm: Norm, clean: Stream, edited: Stream, kind: str) -> Stream:
    """Return the norm of an edited stream, divided by its own scale or by that of the clean one."""
    if kind == "free" or isinstance(norm, NoNorm):
        return norm(edited.unsqueeze(0)).squeeze(0)
    change = edited - clean
    if isinstance(norm, LayerNorm):
        change = change - change.mean(dim=-1, keepdim=True)
        clean_size = clean.var(dim=-1, unbiased=False, keepdim=True)
    else:
        clean_size = clean.pow(2).mean(dim=-1, keepdim=True)
    scaled = change / (clean_size + norm.eps).sqrt() * norm.w
    return norm(clean.unsqueeze(0)).squeeze(0) + scaled
