"""A pruned model as a run or a folder: written, read back and certified before it gets its name.

`probes.pruning.removing` prunes the model; `lab.run_folders` says what a run folder is.
"""

import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.checkpoint import save_model, write_model
from lab.checks import require_whole
from lab.config import SCHEMA_VERSION
from lab.durable import atomic_dir, atomic_write, to_json
from lab.evaluation import Evaluation, evaluate
from lab.fine_tuning import fine_tuned
from lab.gates import GateTensors, HeadGates, Reference
from lab.hooked_gpt import HookedGPT
from lab.manifest import seal_folder
from lab.naming import head_label
from lab.run_folders import (
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
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.pruning.removing import ParityCertificate, certify, prune_heads, weights_sha256
from probes.reading.observed_model import require_gates

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
    """The pruned model on the same batch, before any fine-tuning."""
    tuned: Evaluation | None
    """The fine-tuned model on the same batch; None: it was not trained on."""


def export_pruned_run(
    run: Run,
    heads: Iterable[tuple[int, int]],
    out: Path,
    batch: Batch,
    *,
    step: int | None = None,
    mode: str = "zero",
    reference: Reference | None = None,
    fine_tune: int = 0,
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
        fine_tune: Steps of training that follow, by the run's recipe; see `lab.fine_tuning`. The
            certificate is then of the pruned model as it was before them, and says so.

    Raises:
        ValueError: An unknown head, a folder that exists, models that differ, or weights that do
            not read back bit for bit: nothing is left.
        OSError: If the place cannot be written or is full: nothing is left.
    """
    check_run_name(out.name)
    require_whole("fine_tune", fine_tune, 0)
    gone = tuple(heads)
    model = HookedGPT.load(run.path, step=step)
    gates = HeadGates.ablate(gone, like=model, fill=reference)
    pruned = prune_heads(model, gone, mode=mode, reference=reference)
    gated = gates.tensors(model, [] if reference is None else [reference])
    written = fine_tuned(pruned, run.config, fine_tune) if fine_tune else pruned
    with atomic_dir(out) as folder:
        write_run(folder, run, written, batch, origin(run, gates, step, mode, fine_tune))
        reread = HookedGPT.load(folder)
        require_same_weights(written, reread)
        certificate = certified(model, pruned if fine_tune else reread, gated, batch.tokens, mode)
        certificate = dataclasses.replace(certificate, fine_tuned_steps=fine_tune)
        write_certificate(folder, certificate)
    return PrunedRun(
        path=out,
        certificate=certificate,
        gated=evaluate(model, batch, gates=gated),
        pruned=evaluate(pruned, batch),
        tuned=evaluate(reread, batch) if fine_tune else None,
    )


def export_pruned_model(
    model: HookedGPT,
    heads: Iterable[tuple[int, int]],
    out: Path,
    tokens: Tokens,
    *,
    mode: str = "zero",
    reference: Reference | None = None,
) -> ParityCertificate:
    """Write a model of any origin without some heads to a new folder, certified.

    The folder holds config.json, model.safetensors, the tokenizer and parity.json: what
    `HookedGPT.load` and `headlab probe` open.

    Args:
        model: Any HookedGPT; it is left as it is.
        heads: (layer, head) pairs in original ids.
        out: The new folder.
        tokens: Sequences that the two models are compared and timed on.
        mode: "zero" or "mean".
        reference: What a mean is folded in from; see `prune_heads`.

    Raises:
        ValueError: An unknown head, a folder that exists, models that differ, or weights that do
            not read back bit for bit: nothing is left.
        OSError: If the place cannot be written or is full: nothing is left.
    """
    require_gates(model)
    gates = HeadGates.ablate(heads, like=model, fill=reference)
    gated = gates.tensors(model, [] if reference is None else [reference])
    pruned = prune_heads(model, gates.heads, mode=mode, reference=reference)
    with atomic_dir(out) as folder:
        write_model(pruned, folder, {"pruned_from": removal(gates, mode)})
        reread = HookedGPT.load(folder, device=str(model.W_E.device)).train(model.training)
        require_same_weights(pruned, reread)
        certificate = certified(model, reread, gated, tokens, mode)
        write_certificate(folder, certificate)
    return certificate


def require_same_weights(written: HookedGPT, reread: HookedGPT) -> None:
    """Raise ValueError unless weights were read back bit for bit as they were written."""
    had, got = weights_sha256(written), weights_sha256(reread)
    if had != got:
        raise ValueError(
            f"weights must read back as they were written, with the sha256 {had[:12]}..., got "
            f"{got[:12]}...; nothing was written, try again or choose another disk"
        )


def certified(
    model: HookedGPT, pruned: HookedGPT, gates: GateTensors, tokens: Tokens, mode: str
) -> ParityCertificate:
    """Return the certificate of a pruned model.

    Raises:
        ValueError: It is not the gated model.
    """
    certificate = certify(model, pruned, gates, tokens, mode=mode)
    if not certificate.holds:
        raise ValueError(
            f"the pruned model's logits must be within {certificate.limit:g} of the gated "
            f"model's, got {certificate.max_logit_difference:g}; nothing was written"
        )
    return certificate


def write_certificate(folder: Path, certificate: ParityCertificate) -> None:
    """Put a certificate beside the weights that it vouches for."""
    atomic_write(folder / PARITY, to_json(certificate.to_dict()))
    seal_folder(folder)


def removal(gates: HeadGates, mode: str) -> dict[str, Any]:
    """Return what was removed and what replaces it, for a config.json."""
    return {
        "heads": [head_label(layer, head) for layer, head in gates.heads],
        "mode": mode,
        "reference": gates.fill,
        "reference_sha256": gates.fill_sha256,
    }


def origin(
    run: Run, gates: HeadGates, step: int | None, mode: str, fine_tune: int
) -> dict[str, Any]:
    """Return where a pruned model comes from, for its config.json."""
    weights = WEIGHTS if step is None else f"{CHECKPOINTS}/{step_name(step)}/{WEIGHTS}"
    return {
        "run": run.name,
        "step": run.last_step if step is None else step,
        "weights_sha256": run.files[weights].sha256,
        **removal(gates, mode),
        "fine_tuned_steps": fine_tune,
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
    step = pruned_from["step"] + pruned_from["fine_tuned_steps"]
    row = {
        **dict.fromkeys(METRIC_COLUMNS, math.nan),
        "step": step,
        "eval_loss": measured.loss,
        "token_accuracy": measured.token_accuracy,
        "exact_match": measured.exact_match,
    }
    table = ",".join(METRIC_COLUMNS) + "\n" + metrics_row(row)
    atomic_write(folder / METRICS, table.encode("ascii"))
    checkpoint = folder / CHECKPOINTS / step_name(step)
    save_model(pruned, checkpoint)
    atomic_write(folder / WEIGHTS, (checkpoint / WEIGHTS).read_bytes())
    seal_folder(folder)
