"""Write a pruned model: its place, its certificate, its accuracy and its labels.

`probes.pruning.removing` prunes; `probes.pruning.pruned_run` writes the folder.
"""

import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.commands.arguments import check_out
from apps.console import remark, say, say_facts
from apps.scored_sequences import ScoredInput
from apps.subject import Subject
from apps.terminal.pruning_table import certified_facts, say_certificate, say_survivors
from lab.naming import quoted
from lab.run_folders import check_run_name, runs_home

if TYPE_CHECKING:
    import pandas as pd

MOST_LABELLED = 100
"""Label the remaining heads of models up to this size; larger ones take a minute."""


def place_given(out: str, makes_model: bool) -> Path:
    """Return where to write: a run of that name, a new folder, or a folder of tables.

    Raises:
        ValueError: The name is invalid, taken, or inside a sealed run.
        OSError: It cannot be written.
    """
    if not makes_model:
        return check_out(out)
    check_run_name(Path(out).name)
    path = Path(out) if os.sep in out else runs_home() / out
    if path.exists():
        raise ValueError(
            f"--out must be new, got {quoted(out)}, which exists in {path.parent}; choose another"
        )
    return check_out(str(path))


def default_place(subject: Subject) -> Path:
    """Return a free name beside a run: RUN-pruned, RUN-pruned-2 and so on.

    Raises:
        ValueError: The model is not a run, so there is no default.
        OSError: It cannot be written.
    """
    if subject.opened is None:
        raise ValueError("--out must be given because WHAT is not a run, got none; write --out DIR")
    first = f"{subject.opened.run.name[:80]}-pruned"
    names = (first if n == 1 else f"{first}-{n}" for n in count(1))
    free = next(place for name in names if not (place := runs_home() / name).exists())
    return check_out(str(free))


def write_model(
    subject: Subject,
    heads: tuple[tuple[int, int], ...],
    out: Path,
    chosen: ScoredInput,
    how: Mapping[str, Any],
    *,
    fine_tune: int = 0,
    seed: int = 0,
) -> "dict[str, pd.DataFrame]":
    """Write the smaller model; print its certificate, accuracy and labels; return tables.

    Args:
        subject: The model; it is not modified.
        heads: The heads to remove.
        out: The new folder.
        chosen: Sequences that the models are compared on.
        how: mode and reference, as `prune_heads` takes them.
        fine_tune: Steps of further training of a run.
        seed: Seed of the repeated sequences for the labels.
    """
    from lab.evaluation import evaluate
    from lab.hooked_gpt import HookedGPT
    from probes.pruning.pruned_run import export_pruned_model, export_pruned_run

    remark(f"writing {out.name}, reading it back and comparing ...")
    opened, batch = subject.opened, chosen.batch
    if opened is None:
        proof = export_pruned_model(subject.model, heads, out, batch.tokens, **how)
        measured = {
            "whole model": evaluate(subject.model, batch),
            "heads removed": evaluate(HookedGPT.load(out), batch),
        }
    else:
        step = None if opened.step == opened.run.last_step else opened.step
        done = export_pruned_run(
            opened.run, heads, out, batch, step=step, fine_tune=fine_tune, **how
        )
        proof = done.certificate
        measured = {
            "whole model": evaluate(opened.model, batch),
            "heads ablated": done.gated,
            "heads removed": done.pruned,
        }
        if done.tuned is not None:
            measured["trained further"] = done.tuned
    say_certificate(proof, measured)
    tables = survivors(subject, out, chosen, seed)
    name = out.name if out.parent == runs_home() else str(out)
    kind = "model" if opened is None else "run"
    facts = [*certified_facts(proof), (kind, str(out))]
    if len(set(heads)) < subject.n_heads:  # without heads there is nothing to probe
        says = "" if tables else " shows what the remaining heads do"
        facts.append(("next", f"headlab probe {name}{says}"))
    say_facts(facts)
    return tables


def survivors(
    subject: Subject, out: Path, chosen: ScoredInput, seed: int
) -> "dict[str, pd.DataFrame]":
    """Print what the remaining heads did and do, and return the table.

    Return no table for large models, or if every sequence is too short.
    """
    from lab.hooked_gpt import HookedGPT
    from probes.pruning.survivors import survivor_labels
    from probes.tables import json_rows

    pruned = HookedGPT.load(out, device=str(subject.model.device))
    if subject.n_heads > MOST_LABELLED or not pruned.config.heads():
        return {}
    sequences = chosen.batch if chosen.task else None
    try:
        frame = survivor_labels(subject.model, pruned, sequences, seed=seed)
    except ValueError:  # the model is written; `headlab probe` reports the error
        return {}
    say_survivors(json_rows(frame), chosen.task)
    say()
    return {"survivors": frame}
