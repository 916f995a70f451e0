"""A pruned model as a run of its own: written, read back and certified before it gets its name.

What pruning does to a model is `probes.pruning`'s; what a run folder is, `lab.runs`'s.
"""

import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.checkpoint import load_model, save_model
from lab.config import SCHEMA_VERSION
from lab.durable import atomic_dir, atomic_write, to_json
from lab.evaluation import Evaluation, evaluate
from lab.gates import HeadGates, Reference
from lab.manifest import seal_folder
from lab.model import HookedGPT
from lab.naming import head_label
from lab.runs import (
    CHECKPOINTS,
    CONFIG,
    METRIC_COLUMNS,
    METRICS,
    WEIGHTS,
    Run,
    check_run_name,
    metrics_row,
    step_name,
)
from lab.runtime import git_sha, versions
from lab.tasks.base import Batch
from probes.pruning import ParityCertificate, certify, prune_heads

PARITY = "parity.json"
"""The certificate beside the weights of a pruned run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedRun:
    """What an export left."""

    path: Path
    certificate: ParityCertificate
    gated: Evaluation
    """The gated model on the batch."""
    pruned: Evaluation
    """The pruned model, read back from its folder, on the same batch."""


def export_pruned_run(
    run: Run,
    heads: Iterable[tuple[int, int]],
    out: Path,
    batch: Batch,
    *,
    step: int | None = None,
    mode: str = "zero",
    reference: Reference | None = None,
) -> PrunedRun:
    """Write a run folder with some heads removed, once the folder reads back as the gated model.

    Args:
        run: The complete run whose model is pruned; it is left as it is.
        heads: (layer, head) pairs in original ids.
        out: The new run folder.
        batch: Sequences that the two models are compared on.
        step: The checkpoint to prune; None: the trained model.
        mode: "zero" or "mean".
        reference: What a mean is folded in from; see `prune_heads`.

    Raises:
        ValueError: An unknown head, a folder that exists, or models that differ: nothing is left.
        OSError: If the place cannot be written or is full: nothing is left.
    """
    check_run_name(out.name)
    gone = tuple(heads)
    model = load_model(run.path, step=step)
    gates = HeadGates.ablate(gone, like=model, fill=reference)
    pruned = prune_heads(model, gone, mode=mode, reference=reference)
    gated_tensors = gates.tensors(model, [] if reference is None else [reference])
    with atomic_dir(out) as folder:
        write_run(folder, run, pruned, batch, origin(run, gates, step, mode))
        reread = load_model(folder)
        certificate = certify(model, reread, gated_tensors, batch.tokens, mode=mode)
        if not certificate.holds:
            raise ValueError(
                f"the pruned model's logits must be within {certificate.limit:g} of the gated "
                f"model's, got {certificate.max_logit_difference:g}; nothing was written"
            )
        atomic_write(folder / PARITY, to_json(certificate.to_dict()))
        seal_folder(folder)
    return PrunedRun(
        path=out,
        certificate=certificate,
        gated=evaluate(model, batch, gates=gated_tensors),
        pruned=evaluate(reread, batch),
    )


def origin(run: Run, gates: HeadGates, step: int | None, mode: str) -> dict[str, Any]:
    """Return where a pruned model comes from, for its config.json."""
    weights = WEIGHTS if step is None else f"{CHECKPOINTS}/{step_name(step)}/{WEIGHTS}"
    return {
        "run": run.name,
        "step": run.steps[-1] if step is None else step,
        "weights_sha256": run.files[weights].sha256,
        "heads": [head_label(layer, head) for layer, head in gates.heads],
        "mode": mode,
        "reference": gates.fill,
        "reference_sha256": gates.fill_sha256,
        "parent": run.info.get("pruned_from"),
    }


def write_run(
    folder: Path, run: Run, pruned: HookedGPT, batch: Batch, pruned_from: Mapping[str, Any]
) -> None:
    """Fill a folder with what every run has: config, metrics, one checkpoint, weights, manifest."""
    config = dataclasses.replace(run.config, model=pruned.config)
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    described = {"schema_version": SCHEMA_VERSION, "train": config.to_dict()}
    described |= {"seed": config.seed, "created": created}
    described |= {"git_sha": git_sha(), "versions": versions(), "pruned_from": dict(pruned_from)}
    atomic_write(folder / CONFIG, to_json(described))
    measured = evaluate(pruned, batch)
    row = {
        **dict.fromkeys(METRIC_COLUMNS, math.nan),
        "step": pruned_from["step"],
        "eval_loss": measured.loss,
        "token_accuracy": measured.token_accuracy,
        "exact_match": measured.exact_match,
    }
    table = ",".join(METRIC_COLUMNS) + "\n" + metrics_row(row)
    atomic_write(folder / METRICS, table.encode("ascii"))
    checkpoint = folder / CHECKPOINTS / step_name(pruned_from["step"])
    save_model(pruned, checkpoint)
    atomic_write(folder / WEIGHTS, (checkpoint / WEIGHTS).read_bytes())
    seal_folder(folder)
