"""What a model loses without heads: every head and every layer ablated in turn, or sets of heads.

The tables of ablations, and what fills the gaps that they leave; how a sweep runs is in
`probes.ablation.sweep`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float, Float64
from torch import Tensor

from lab.checks import require_choice, require_seed
from lab.config import ModelConfig
from lab.gates import Donors, Reference
from lab.hooked_gpt import HookedGPT
from lab.naming import head_label
from lab.shapes import GivenMask, HeadVectors, PositionMask, Tokens
from lab.tasks.base import Batch
from probes.ablation.ledger import tensor_digest
from probes.ablation.metrics import DEFAULT_METRICS, MetricFunction
from probes.ablation.sweep import Ablation, HeadSet, Swept, sweep_sets
from probes.attention.targets import ProbeInput
from probes.execution import Execution
from probes.reading.observed_model import (
    model_device,
    observe_layers,
    probe_input,
    provenance,
    require_gates,
    slices_of,
)
from probes.reading.pattern_reads import LayerReads
from probes.schemas.cause import ABLATION
from probes.tables import digest, rows_table

HEADS_AND_LAYERS = "heads and layers"
SETS = ("heads", HEADS_AND_LAYERS)
"""What a sweep ablates by name."""
MOST_HEADS_WITH_LAYERS = 100
"""In a model with more heads, a sweep ablates whole layers only on request."""


def ablation_sweep(
    model: HookedGPT,
    batch: Batch | Tokens,
    mode: str | Ablation = "zero",
    *,
    sets: str | Iterable[Iterable[Sequence[int]]] | None = None,
    metrics: Iterable[str | MetricFunction] = DEFAULT_METRICS,
    attention_mask: GivenMask | None = None,
    execution: Execution | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Ablate every head, and every whole layer: one row per layer, head (or none) and metric.

    delta = ablated - baseline; its interval resamples sequences, the same for both numbers. A
    single head's delta is a lower bound: heads that do the same job replace each other, which
    is what the rows of whole layers, or of sets of your own, show.

    Range: loss in nats, unbounded; accuracies from -1 to 1.

    Source: Michel et al. 2019, Are sixteen heads really better than one?

    Caveat: Another head may replace one whose removal costs nothing: compare whole layers. The loss
    hides what a saturated answer would need.

    >>> from probes import repeated_batch
    >>> from probes.planted import PlantedHead, plant
    >>> copy = PlantedHead(kind="induction", writes="copy")
    >>> model = plant([[PlantedHead(kind="previous", writes="tokens")], [copy]]).model
    >>> batch = repeated_batch(model, block=5)
    >>> table = ablation_sweep(model, batch, sets="heads", metrics="loss")
    >>> table[["heads", "delta"]].round(1).values.tolist()  # induction needs both heads
    [['L0H0', 1.0], ['L1H0', 0.9]]

    Args:
        model: A HookedGPT.
        batch: Sequences of a task, with the rows that its loss counts; or plain tokens,
            whose loss and accuracy are those of every next token (exact_match: of all in a row).
        mode: "zero", or an `Ablation`, which brings what the modes "mean" and "resample" fill the
            gaps with (see `mean_reference` and `head_donors`), a gate and positions.
        sets: "heads": each head; "heads and layers": each layer's heads together, too; or your own
            sets of (layer, head) pairs, where a row's layer is the lowest of its set. None: "heads
            and layers" in a model of up to MOST_HEADS_WITH_LAYERS heads, where layers show
            stand-ins at little cost; "heads" in a larger one.
        metrics: Names out of METRICS in `probes.ablation.metrics`, or functions of the same form.
        attention_mask: True at real tokens; rows at padding, or that predict it, do not count.
        execution: Memory, progress, ledger and processes of the sweep.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: An unknown mode, metric or head, a mode without what it fills the gap with, an
            empty batch, or neither a batch nor token ids.
    """
    require_gates(model)
    require_seed(seed)
    ablation = mode if isinstance(mode, Ablation) else Ablation(mode=mode)
    if sets is None or isinstance(sets, str):
        chosen, singles = named_sets(model.config, sets)
    else:
        chosen, singles = given_sets(sets)
    swept = sweep_sets(
        model,
        batch,
        chosen,
        ablation=ablation,
        metrics=metrics,
        attention_mask=attention_mask,
        execution=execution,
    )
    tokens = batch.tokens if isinstance(batch, Batch) else batch
    filled_from = ablation.filled_from
    about = {
        **provenance(model, tokens),
        "bootstrap_seed": seed,
        "ablation": ablation.to_dict(),
        "reference": None if filled_from is None else filled_from.name,
        "reference_sha256": None if filled_from is None else filled_from.sha256,
    }
    return ablation_table(swept, singles, ablation.mode, about, seed)


def named_sets(config: ModelConfig, name: str | None) -> tuple[list[HeadSet], list[bool]]:
    """Return every head, maybe with its whole layer after it; and which set is one head."""
    if name is None:
        few = len(config.heads()) <= MOST_HEADS_WITH_LAYERS
        name = HEADS_AND_LAYERS if few else "heads"
    require_choice("sets", name, SETS)
    sets: list[HeadSet] = []
    singles: list[bool] = []
    for layer in range(config.n_layers):
        heads = tuple((layer, head) for head in config.heads_of(layer))
        sets += [(head,) for head in heads]
        singles += [True] * len(heads)
        if heads and name == HEADS_AND_LAYERS:
            sets.append(heads)
            singles.append(False)
    return sets, singles


def given_sets(sets: Iterable[Iterable[Sequence[int]]]) -> tuple[list[Any], list[bool]]:
    """Return the caller's sets of heads, and which is one head."""
    chosen = [list(heads) for heads in sets]
    if not all(chosen):
        raise ValueError(
            "a set of heads must be at least one (layer, head) pair, got none; the baseline is a "
            "column of every row"
        )
    return chosen, [len(heads) == 1 for heads in chosen]


def ablation_table(
    swept: Swept, singles: Sequence[bool], mode: str, about: Mapping[str, Any], seed: int
) -> pd.DataFrame:
    """Return the table of a sweep.

    Args:
        swept: What was measured.
        singles: Whether a set is named by its head, in the column of heads.
        mode: What filled the gaps.
        about: Provenance.
        seed: Seed of the bootstrap.
    """
    means, changes = swept.means(), swept.deltas(seed=seed)
    rows = [
        {
            "layer": heads[0][0],
            "head": heads[0][1] if single else None,
            "heads": ",".join(head_label(layer, head) for layer, head in heads),
            "metric": metric.name,
            "mode": mode,
            "baseline": means[0, j],
            "ablated": means[1 + i, j],
            "delta": changes.delta[i, j],
            "ci_low": changes.ci_low[i, j],
            "ci_high": changes.ci_high[i, j],
            "n_sequences": swept.n_sequences,
            "unit": metric.unit,
        }
        for i, (heads, single) in enumerate(zip(swept.sets, singles, strict=True))
        for j, metric in enumerate(swept.metrics)
    ]
    return rows_table(rows, ABLATION, about)


def mean_reference(
    model: HookedGPT,
    batch: Batch | Tokens,
    *,
    name: str = "reference",
    per_position: bool = True,
    attention_mask: GivenMask | None = None,
) -> Reference:
    """Return the mean z of every head over a set of sequences, to fill the gaps of mean ablations.

    Take a split that the ablation is not measured on. The mean per position keeps what a head does
    at that position whatever the tokens are; the mean over positions removes that too.

    >>> from lab import HeadGates
    >>> from probes import repeated_batch
    >>> from probes.planted import PlantedHead, plant
    >>> copy = PlantedHead(kind="induction", writes="copy")
    >>> model = plant([[PlantedHead(kind="previous", writes="tokens")], [copy]]).model
    >>> reference = mean_reference(model, repeated_batch(model, block=5))
    >>> HeadGates.ablate([(1, 0)], like=model, fill=reference).fill
    'reference'

    Args:
        model: A HookedGPT.
        batch: The sequences.
        name: What tables call the set.
        per_position: One mean a position, or one over all of them.
        attention_mask: True at real tokens; outputs at padding are left out of the means.

    Raises:
        ValueError: Means per position, and a position that is padding in every sequence.
    """
    require_gates(model)
    x = probe_input(model, batch, attention_mask=attention_mask)
    real = real_of(x)
    counts = real.sum(dim=0).double()
    if per_position:
        require_real_positions(real, "take per_position=False or sequences of the full length")
    sums: dict[int, Float64[Tensor, "pos head d_head"]] = {}

    def observe(layer: int, reads: LayerReads) -> None:
        mixed = torch.cat([mixed_values(tile, reads.v) for _, tile in reads.tiles()], dim=1)
        kept = mixed.cpu().double()
        if part.real is not None:
            kept = kept.where(part.real.cpu()[:, :, None, None], 0.0)
        total = kept.sum(dim=0)
        sums[layer] = sums[layer] + total if layer in sums else total

    for part in slices_of(x, model_device(model)):
        observe_layers(model, part.tokens, observe, part.real)
    config = model.config
    dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
    n_pos = x.tokens.shape[1] if per_position else 1
    z = torch.zeros(config.n_layers, n_pos, config.n_heads, config.head_width, dtype=dtype)
    for layer, total in sums.items():
        ids = list(config.heads_of(layer))
        if per_position:
            z[layer, :, ids] = (total / counts[:, None, None]).to(dtype)
        else:
            z[layer, :, ids] = (total.sum(dim=0) / counts.sum()).to(dtype)
    of = "one mean a position" if per_position else "one mean"
    return Reference(name=name, sha256=fill_digest(model, of, x.tokens, real), z=z)


def head_donors(
    model: HookedGPT,
    batch: Batch | Tokens,
    *,
    name: str = "donors",
    attention_mask: GivenMask | None = None,
) -> Donors:
    """Return z of every head in each of some sequences, to fill the gaps of resample ablations.

    Take at least eight sequences, of the length of those that the ablation is measured on and of a
    split of their own: the effect of one donor depends as much on the donor as on the head.

    Args:
        model: A HookedGPT.
        batch: The donors.
        name: What tables call the set.
        attention_mask: True at real tokens. Outputs at padding are never used as a fill: at those
            positions, the next donor with a real token supplies it.

    Raises:
        ValueError: A position that is padding in every donor.
    """
    require_gates(model)
    x = probe_input(model, batch, attention_mask=attention_mask)
    real = real_of(x)
    require_real_positions(real, "give sequences of the full length")
    config = model.config
    dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
    donors, n_pos = x.tokens.shape
    z = torch.zeros(donors, config.n_layers, n_pos, config.n_heads, config.head_width, dtype=dtype)
    first = 0

    def observe(layer: int, reads: LayerReads) -> None:
        mixed = torch.cat([mixed_values(tile, reads.v) for _, tile in reads.tiles()], dim=1)
        rows = slice(first, first + len(mixed))
        z[rows, layer, :, list(config.heads_of(layer))] = mixed.to("cpu", dtype)

    for part in slices_of(x, model_device(model)):
        observe_layers(model, part.tokens, observe, part.real)
        first += len(part.tokens)
    for donor, pos in (~real).nonzero().tolist():
        after = real[:, pos].roll(-donor).int().argmax()
        z[donor, :, pos] = z[(donor + after) % donors, :, pos]
    return Donors(name=name, sha256=fill_digest(model, "donors", x.tokens, real), z=z)


def real_of(x: ProbeInput) -> PositionMask:
    """Return which tokens are real, on the CPU."""
    return torch.ones_like(x.tokens, dtype=torch.bool).cpu() if x.real is None else x.real.cpu()


def require_real_positions(real: PositionMask, remedy: str) -> None:
    """Raise ValueError where a position is padding in every sequence."""
    found = real.any(dim=0)
    if not bool(found.all()):
        raise ValueError(
            "every position must be a real token of some sequence, got only padding at position "
            f"{int(found.int().argmin())}; {remedy}"
        )


def fill_digest(model: HookedGPT, kind: str, *read: Tensor) -> str:
    """Return the digest of a fill: its kind, its model and its tokens."""
    return digest(f"{kind} {tensor_digest(*model.state_dict().values(), *read)}".encode())


def mixed_values(
    tile: Float[Tensor, "batch head query_pos key_pos"],
    v: Float[Tensor, "batch key_pos head d_head"],
) -> HeadVectors:
    """Return z of some rows."""
    return einsum(tile, v, "batch head q k, batch k head d -> batch q head d")
