"""Runs of a model without sets of heads, in which later heads are observed.

One run gives both what is left of some heads' induction scores and what the second copy then costs.
Layers below a set are run once for all sets, and sets that begin in one layer run as one batch;
heads are read from q and k, so that no matrix is built. Which sets are run is decided in
`probes.feeders.scores`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import repeat
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint

from lab.attention_reads import AttentionReads
from lab.gates import GateTensors, HeadGates
from lab.hooked_gpt import HookedGPT
from lab.shapes import Pattern, Resid, Tokens
from probes.ablation.ledger import known_by, open_ledger, tensor_digest
from probes.ablation.matched_sets import Head
from probes.ablation.sweep import Ablation, HeadSet
from probes.ablation.sweep_passes import TOKENS_AT_ONCE, repeated, set_gates
from probes.execution import Execution
from probes.head_classes import LADDER
from probes.labels.layer_measures import pair_rows
from probes.reading.inputs import PairedInput
from probes.reading.observed_model import Observer, model_device, require_unhooked
from probes.reading.pattern_reads import LayerReads
from probes.tables import digest

LOGITS_AT_ONCE = 2**26
"""Logits that are computed at once: 256 MB in float32."""

RunScores = Float64[Tensor, "run batch target"]
RunLosses = Float64[Tensor, "run batch"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FeederRuns:
    """What was left without each set, sequence by sequence; run 0 is the whole model."""

    scores: Float64[np.ndarray, "batch run target"]
    """Attention of each target on what followed the first copy of a token, mean over rows; of a
    target that is below the set, which cannot reach it, 0."""
    losses: Float64[np.ndarray, "batch run"]
    """Mean of -ln p of the tokens of the second copy, in nats."""
    frozen_losses: Float64[np.ndarray, "batch run"]
    """The same where all attention stays as it is in the whole model; NaN: not asked."""


@torch.no_grad()
def runs_without(
    model: HookedGPT,
    pair: PairedInput,
    sets: Sequence[HeadSet],
    targets: Sequence[Head],
    *,
    ablation: Ablation,
    frozen: bool = False,
    execution: Execution,
) -> FeederRuns:
    """Run the model once whole, and once without each set of heads.

    Args:
        model: A HookedGPT; it is left as it is.
        pair: Repeated blocks; only the arm that repeats is run.
        sets: Sets of heads, none of them empty, in original ids.
        targets: The heads to watch.
        ablation: What happens to the heads of a set.
        frozen: Run each set once more, with all attention as it is in the whole model.
        execution: Progress and ledger of the runs.

    Raises:
        ValueError: A hook is on scores or pattern: reads would not see its effect; or the
            ledger is of another request, or of a model with hooks.
    """
    require_unhooked(model)
    sets = [(), *sets]
    found = np.full((len(pair), len(sets), len(targets) + 2), np.nan)
    step = max(1, TOKENS_AT_ONCE // pair.tokens.shape[1])
    starts = range(0, len(pair), step)
    done, total = 0, len(starts) * len(sets)

    def manifest() -> dict[str, Any]:
        return manifest_of(model, pair, sets, targets, ablation, frozen)

    with open_ledger(execution, manifest) as kept:
        for start in starts:
            rows = slice(start, start + step)
            tokens = pair.tokens[rows].to(model_device(model))
            some = SomeRuns(model=model, pair=pair, tokens=tokens, targets=tuple(targets))
            patterns = some.whole_patterns() if frozen else {}
            for layer, residual, runs in some.entries(sets):
                without = [sets[i] for i in runs]
                found[rows, runs] = kept.kept(
                    f"from-{start}-runs-{runs[0]}",
                    (len(tokens), len(runs), found.shape[2]),
                    partial(some.measured, residual, layer, without, ablation, patterns),
                )
                done += len(runs)
                execution.tell(done, total)
    return FeederRuns(
        scores=found[:, :, :-2], losses=found[:, :, -2], frozen_losses=found[:, :, -1]
    )


def manifest_of(
    model: HookedGPT,
    pair: PairedInput,
    sets: Sequence[HeadSet],
    targets: Sequence[Head],
    ablation: Ablation,
    frozen: bool,
) -> dict[str, Any]:
    """Return what the bits of some runs depend on, as plain data."""
    return {
        **known_by(model, pair.tokens),
        "blocks": [pair.first, pair.block],
        "sets": digest(repr(sets).encode()),
        "targets": HeadGates(heads=tuple(targets)).label,
        "ablation": ablation.to_dict(),
        "fills": tensor_digest(*(fill for fill in ablation.fills() if fill is not None)),
        "frozen": frozen,
        "tokens_at_once": TOKENS_AT_ONCE,
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class SomeRuns:
    """The runs of a few sequences."""

    model: HookedGPT
    pair: PairedInput
    """Positions of the copies."""
    tokens: Tokens
    targets: tuple[Head, ...]

    def entries(self, sets: Sequence[HeadSet]) -> Iterator[tuple[int, Resid, list[int]]]:
        """Yield (layer, the stream before it, sets whose lowest head is there), some at once.

        A set without heads enters at layer 0.
        """
        lowest = [min((layer for layer, _ in heads), default=0) for heads in sets]
        at_once = max(1, TOKENS_AT_ONCE // self.tokens.numel())
        residual = self.model.forward(self.tokens, stop_at_layer=0)
        for layer in range(max(lowest) + 1):
            here = [i for i, entry in enumerate(lowest) if entry == layer]
            for start in range(0, len(here), at_once):
                yield layer, residual, here[start : start + at_once]
            residual = self.model.forward(residual, start_at_layer=layer, stop_at_layer=layer + 1)

    def measured(
        self,
        residual: Resid,
        layer: int,
        sets: Sequence[HeadSet],
        ablation: Ablation,
        patterns: Mapping[str, Pattern],
    ) -> Float64[np.ndarray, "batch run number"]:
        """Return scores, loss and loss under frozen attention without each set, side by side.

        Args:
            residual: The stream before a layer.
            layer: The layer.
            sets: Sets of heads of this layer and later ones.
            ablation: What happens to them.
            patterns: Attention of the whole model, to be frozen; none: the last loss is NaN.
        """
        scores, losses = self.run(residual, layer, sets, ablation)
        frozen = torch.full_like(losses, torch.nan)
        if patterns:
            with self.frozen_attention(patterns):
                _, frozen = self.run(residual, layer, sets, ablation)
        beside = torch.stack([losses, frozen], dim=2)
        return torch.cat([scores, beside], dim=2).transpose(0, 1).numpy()

    def run(
        self, residual: Resid, layer: int, sets: Sequence[HeadSet], ablation: Ablation
    ) -> tuple[RunScores, RunLosses]:
        """Return scores and losses without each set; with several donors, their means.

        Args:
            residual: The stream before a layer.
            layer: The layer.
            sets: Sets of heads of this layer and later ones.
            ablation: What happens to them.
        """
        model, n = self.model, len(sets)
        n_pos = self.tokens.shape[1]
        g = set_gates(model.config, sets, ablation.value, ablation.positions, n_pos)
        stacked = repeat(residual, "batch pos d_model -> (run batch) pos d_model", run=n)
        fills = ablation.fills()
        scores = torch.zeros(len(stacked), len(self.targets), dtype=torch.float64)
        losses = torch.zeros(len(stacked), dtype=torch.float64)
        for fill in fills:
            final = model.forward(
                stacked,
                gates=repeated(GateTensors(g=g, fill=fill), len(self.tokens)),
                observe=self.observer(scores),
                start_at_layer=layer,
                stop_at_layer=model.config.n_layers,
            )
            losses += self.losses(final)
        by_run = (n, len(self.tokens))
        scores, losses = ((own / len(fills)).unflatten(0, by_run) for own in (scores, losses))
        return scores, losses

    def observer(self, scores: Float64[Tensor, "row target"]) -> Observer:
        """Return what adds the targets' scores to a tensor, as their layers come by."""
        config = self.model.config

        def observe(layer: int, reads: AttentionReads) -> None:
            columns = [i for i, target in enumerate(self.targets) if target[0] == layer]
            if columns:
                heads = [config.heads_of(layer).index(self.targets[i][1]) for i in columns]
                scores[:, columns] += induction_means(reads, self.pair)[:, heads]

        return observe

    def losses(self, final: Resid) -> Float64[Tensor, " row"]:
        """Return the mean of -ln p of the tokens of the second copy, from the last residual stream.

        The copy's first token is left out: it cannot be predicted.
        """
        rows = torch.arange(self.pair.second, self.pair.second + self.pair.block - 1)
        answers = self.tokens[:, rows + 1].repeat(len(final) // len(self.tokens), 1)
        step = max(1, LOGITS_AT_ONCE // (len(rows) * self.model.config.vocab_out))
        parts = []
        for stream, own in zip(final[:, rows].split(step), answers.split(step), strict=True):
            logits = self.model.forward(stream, start_at_layer=self.model.config.n_layers)
            full = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
            losses = F.cross_entropy(full, own.flatten(), reduction="none").view_as(own)
            parts.append(losses.cpu().double().mean(dim=1))
        return torch.cat(parts)

    def whole_patterns(self) -> dict[str, Pattern]:
        """Return every attention matrix of the whole model, by the name of its hook point."""
        names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(self.model.config.n_layers)]
        _, patterns = self.model.run_with_cache(
            self.tokens, names_filter=names, return_type=None, return_cache_object=False
        )
        return patterns

    @contextmanager
    def frozen_attention(self, patterns: Mapping[str, Pattern]) -> Iterator[None]:
        """Make every layer attend as the whole model does, whatever its input.

        Source: Olsson et al. 2022, pattern-preserving ablation.
        """

        def keep(pattern: Pattern, hook: HookPoint) -> Pattern:
            whole = patterns[str(hook.name)]
            return whole.repeat(len(pattern) // len(whole), 1, 1, 1)

        with self.model.hooks(fwd_hooks=[(name, keep) for name in patterns]):
            yield


def induction_means(reads: LayerReads, pair: PairedInput) -> Float64[Tensor, "batch head"]:
    """Return the attention on what followed the first copy of a token, mean over rows."""
    rows, keys = pair_rows(pair)
    return reads.cells(rows, keys[LADDER.index("induction")]).cpu().double().mean(dim=-1)
