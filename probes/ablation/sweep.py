"""The exact sweep: what a model loses without each of many sets of heads.

Nothing is estimated here: every set of heads is ablated and the model runs on. Sets may be of any
size, over any layers. `probes.ablation.sweep_passes` computes the passes; other modules make
tables and labels of the numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from lab.checks import require_choice, require_number
from lab.gates import Donors, HeadGates, Reference, check_fill
from lab.hooked_gpt import HookedGPT
from lab.naming import quoted
from lab.runtime import sum_over
from lab.shapes import GivenMask, PositionMask, Tokens
from lab.tasks.base import Batch
from probes.ablation.ledger import Ledger, known_by, open_ledger, tensor_digest
from probes.ablation.metrics import DEFAULT_METRICS, Metric, MetricFunction, get_metrics
from probes.ablation.sweep_passes import (
    Fill,
    HeadSet,
    Request,
    RunTotals,
    SequenceRuns,
    planned,
)
from probes.execution import Execution
from probes.intervals import bootstrap_interval
from probes.reading.observed_model import as_batch, probe_input, require_gates
from probes.tables import digest

MODES = ("zero", "mean", "resample")


@dataclass(frozen=True, kw_only=True, eq=False)
class Ablation:
    """What happens to the heads of a set: z <- value * z + (1 - value) * fill."""

    mode: str = "zero"
    """zero: the fill is zeros; mean: a reference; resample: each donor in turn, and the mean of
    what they do."""
    value: float = 0.0
    """The gate of the heads: 0 removes them, 1 leaves them alone."""
    positions: tuple[int, ...] | None = None
    """Positions at which it happens; None: all."""
    reference: Reference | None = None
    """The fill of mode mean; see `probes.ablation.table.mean_reference`."""
    donors: Donors | None = None
    """The fills of mode resample; see `probes.ablation.table.head_donors`."""

    def __post_init__(self) -> None:
        """Check that there is a fill, and only the one that the mode needs."""
        require_choice("ablation mode", self.mode, MODES)
        require_number("value", self.value, 0.0, 1.0)
        needed = {"mean": "reference", "resample": "donors"}.get(self.mode)
        kinds = {"reference": Reference, "donors": Donors}
        for name, kind in kinds.items():
            given = getattr(self, name)
            if given is not None and name != needed:
                mode = "mean" if name == "reference" else "resample"
                raise ValueError(
                    f"{name} must be None for mode {quoted(self.mode)}, got "
                    f"{type(given).__name__}; say mode={mode!r}, or leave it out"
                )
            if given is not None and not isinstance(given, kind):
                raise ValueError(
                    f"{name} must be {kind.__name__}, got {type(given).__name__}; "
                    "mean_reference makes a Reference, head_donors makes Donors"
                )
        if self.mode == "mean" and self.reference is None:
            raise ValueError(
                "reference must be given for mode 'mean', got None; pass Ablation(mode='mean', "
                "reference=mean_reference(model, task.sample(256, seed=0, split='reference')))"
            )
        if self.mode == "resample" and self.donors is None:
            raise ValueError(
                "donors must be given for mode 'resample', got None; pass "
                "Ablation(mode='resample', "
                "donors=head_donors(model, task.sample(8, seed=0, split='reference')))"
            )

    @property
    def filled_from(self) -> Reference | Donors | None:
        """What fills the gaps; None: zeros."""
        return {"mean": self.reference, "resample": self.donors}.get(self.mode)

    def fills(self) -> list[Fill | None]:
        """Return what fills the gaps: one fill a run, whose results are averaged."""
        filled_from = self.filled_from
        if isinstance(filled_from, Donors):
            return [reference.z.unsqueeze(1) for reference in filled_from.references()]
        return [None if filled_from is None else filled_from.z.unsqueeze(1)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the provenance of a table."""
        filled_from = self.filled_from
        return {
            "mode": self.mode,
            "value": self.value,
            "positions": None if self.positions is None else list(self.positions),
            "fill": None if filled_from is None else filled_from.name,
            "fill_sha256": None if filled_from is None else filled_from.sha256,
            "n_donors": len(filled_from.z) if isinstance(filled_from, Donors) else None,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Deltas:
    """ablated - baseline of every set and metric, with its interval."""

    delta: Float64[np.ndarray, "set metric"]
    ci_low: Float64[np.ndarray, "set metric"]
    """Lower end of the 95 % interval: sequences are resampled, the same for both numbers."""
    ci_high: Float64[np.ndarray, "set metric"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Swept:
    """What a sweep measured, sequence by sequence. Run 0 is the whole model, run 1 + i set i."""

    sets: tuple[HeadSet, ...]
    metrics: tuple[Metric, ...]
    totals: RunTotals
    """Sums over the scored rows of each sequence."""
    counts: Float64[np.ndarray, "sequence metric"]
    """The divisors of the sums: scored rows; for a metric of whole sequences, 1 for each sequence
    with a scored row."""

    @property
    def n_sequences(self) -> int:
        """How many sequences have a row that is scored."""
        return int(np.count_nonzero(self.counts[:, 0]))

    def means(self) -> Float64[np.ndarray, "run metric"]:
        """Return every metric of every run; NaN where nothing was scored."""
        with np.errstate(invalid="ignore"):
            return self.totals.sum(axis=0) / self.counts.sum(axis=0)

    def deltas(self, *, seed: int = 0) -> Deltas:
        """Return what each set changes, with the bootstrap interval over sequences."""
        means, changes = self.means(), self.totals[:, 1:] - self.totals[:, :1]
        ends = [
            bootstrap_interval(changes[:, :, i], self.counts[:, i], seed=seed)
            for i in range(len(self.metrics))
        ]
        low, high = (np.stack(end, axis=1) for end in zip(*ends, strict=True))
        return Deltas(delta=means[1:] - means[:1], ci_low=low, ci_high=high)


def sweep_sets(
    model: HookedGPT,
    batch: Batch | Tokens,
    sets: Iterable[Iterable[Sequence[int]]],
    *,
    ablation: Ablation | None = None,
    metrics: Iterable[str | MetricFunction] = DEFAULT_METRICS,
    attention_mask: GivenMask | None = None,
    execution: Execution | None = None,
) -> Swept:
    """Ablate each set of heads and measure the model on every sequence.

    Args:
        model: A HookedGPT; it is left as it is.
        batch: Sequences of a task, with the rows that its loss counts; or plain tokens, of which
            every next token counts.
        sets: Any sets of (layer, head) pairs, in original ids; equal ones are computed once.
        ablation: What happens to the heads; None: zeros take their place.
        metrics: Names out of METRICS in `probes.ablation.metrics`, or functions of the same form.
        attention_mask: True at real tokens; rows at padding, or that predict it, do not count.
        execution: Memory, progress, ledger and processes of the sweep.

    Raises:
        ValueError: No sequence, a head that the model lacks, an unknown metric, answers outside the
            model's output vocabulary, positions that no sequence has, a fill of another model's
            size, the ledger of another request, or one of a model with hooks.
    """
    ablation = Ablation() if ablation is None else ablation
    execution = Execution() if execution is None else execution
    wanted = known_sets(model, sets, ablation)
    request = sweep_request(
        model,
        batch,
        wanted,
        ablation=ablation,
        metrics=metrics,
        attention_mask=attention_mask,
        memory=execution.memory,
    )
    with open_ledger(execution, lambda: manifest_of(request, ablation)) as kept:
        totals = swept_totals(request, kept, execution)
    where = {heads: i for i, heads in enumerate(request.sets)}
    return Swept(
        sets=wanted,
        metrics=request.metrics,
        totals=totals[:, [0, *(where[heads] for heads in wanted)]],
        counts=row_counts(request.batch, request.metrics),
    )


def known_sets(
    model: HookedGPT, sets: Iterable[Iterable[Sequence[int]]], ablation: Ablation
) -> tuple[HeadSet, ...]:
    """Return sets of heads as a sweep knows them; a head that the model lacks is an error."""
    require_gates(model)
    return tuple(
        HeadGates.ablate(heads, like=model, positions=ablation.positions).heads for heads in sets
    )


def sweep_request(
    model: HookedGPT,
    batch: Batch | Tokens,
    sets: tuple[HeadSet, ...],
    *,
    ablation: Ablation,
    metrics: Iterable[str | MetricFunction],
    attention_mask: GivenMask | None,
    memory: int,
) -> Request:
    """Return what every chunk needs to know, checked; see `sweep_sets` for the arguments."""
    measured = get_metrics(metrics)
    real = probe_input(model, batch, attention_mask=attention_mask).real
    scored = scored_batch(as_batch(batch), real)
    require_answers(scored, model.config.vocab_out)
    n_pos = scored.tokens.shape[1]
    if n_pos > model.config.n_ctx:  # a pass up to the last scored row might have room
        raise ValueError(
            f"a sequence must have 1 to n_ctx = {model.config.n_ctx} tokens, got {n_pos}"
        )
    require_positions(ablation.positions, n_pos)
    if ablation.filled_from is not None:
        check_fill(ablation.filled_from.z, model.config, n_pos)
    return Request(
        model=model,
        batch=scored,
        real=real,
        sets=tuple(dict.fromkeys([(), *sets])),
        value=ablation.value,
        positions=ablation.positions,
        fills=tuple(ablation.fills()),
        metrics=measured,
        memory=memory,
    )


@torch.no_grad()
def swept_totals(request: Request, ledger: Ledger, execution: Execution) -> RunTotals:
    """Compute this process's chunks, or read them, and return all processes' totals."""
    chunks = list(enumerate(planned(request)))
    mine = chunks[execution.processes.index :: execution.processes.count]
    runs_in_all = sum(len(chunk.sets) for _, chunk in mine)
    shape = (len(request.batch), len(request.sets), len(request.metrics))
    sums, done = np.zeros(shape), 0
    runs: SequenceRuns | None = None
    for number, chunk in mine:
        shape_of_chunk = (chunk.sequences[1] - chunk.sequences[0], len(chunk.sets), shape[2])
        name = f"chunk-{number:06d}"
        found = ledger.read(name, shape_of_chunk)
        if found is None:
            if runs is None or runs.sequences != chunk.sequences:
                runs = None  # before the next ones take as much memory
                runs = SequenceRuns(request, chunk.sequences)
            found = runs.totals(chunk)
            ledger.write(name, found)
        sums[slice(*chunk.sequences), list(chunk.sets)] += found
        done += len(chunk.sets)
        execution.tell(done, runs_in_all)
    sums = sum_over(execution.processes, torch.from_numpy(sums)).numpy()
    sums[:, 1:] /= len(request.fills)
    return sums


def manifest_of(request: Request, ablation: Ablation) -> dict[str, Any]:
    """Return what the bits of a sweep's results depend on, as plain data."""
    batch = request.batch
    real = () if request.real is None else (request.real,)
    return {
        **known_by(request.model, batch.tokens, batch.loss_mask, *real),
        "sets": digest(repr(request.sets).encode()),
        "ablation": ablation.to_dict(),
        "fills": tensor_digest(*(fill for fill in request.fills if fill is not None)),
        "metrics": [metric.name for metric in request.metrics],
        "chunks": [[*chunk.sequences, len(chunk.sets)] for chunk in planned(request)],
    }


def scored_batch(batch: Batch, real: PositionMask | None) -> Batch:
    """Return the batch without rows at padding, or whose next token is padding."""
    if real is None:
        return batch
    followed = real & real.roll(-1, dims=1)
    return Batch(batch.tokens, batch.loss_mask & followed, batch.sources)


def require_positions(positions: tuple[int, ...] | None, n_pos: int) -> None:
    """Raise ValueError unless sequences of n_pos tokens have every position of an ablation."""
    if positions is None:
        return
    if not positions:
        raise ValueError("positions must be at least one, got none; None takes all of them")
    if max(positions) >= n_pos:
        raise ValueError(
            f"positions must be below the {n_pos} tokens of a sequence, got {max(positions)}"
        )


def require_answers(batch: Batch, vocab_out: int) -> None:
    """Raise ValueError unless the model has a logit for every answer."""
    answers = batch.tokens.roll(-1, dims=1)[batch.loss_mask]
    if len(answers) and int(answers.max()) >= vocab_out:
        raise ValueError(
            f"d_vocab_out must be above every answer, got {vocab_out} for answers up to "
            f"{int(answers.max())}; give sequences whose answers the model can say"
        )


def row_counts(batch: Batch, metrics: tuple[Metric, ...]) -> Float64[np.ndarray, "sequence metric"]:
    """Return the divisor of each sequence's totals: 0 where no row is scored."""
    scored = batch.loss_mask.sum(dim=1).cpu().double()
    whole = (scored > 0).double()
    counts = [whole if metric.per == "sequence" else scored for metric in metrics]
    return torch.stack(counts, dim=1).numpy()
