"""What a screen shows before a model is loaded: scores, small maps and one sentence, as JSON.

The app reads it without torch. Nothing is measured here; the tables and maps are handed in.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lab.naming import article, head_label
from probes.attention.maps import Map
from probes.number_text import per_cent
from probes.registry import ProbeEntry, get_probe, probe_names
from probes.tables import json_rows, plain

SCHEMA_VERSION = 2
"""Version of first_screen.json; a reader refuses a newer one. Version 1 had no labels."""

STANDS_OUT = 0.5
"""Score from which the best head is called by its probe's name."""


def best_head(heads: pd.DataFrame) -> dict[str, Any] | None:
    """Return the row that says most: the highest score on the task's sources, if one stands out.

    Otherwise the row furthest above chance, whichever its probe. None where nothing was scored.
    """
    rows = heads.dropna(subset=["score", "kappa"])
    sources = rows[rows["probe"] == "sources"]
    if len(sources) and sources["score"].max() >= STANDS_OUT:
        rows = sources
    if rows.empty:
        return None
    return json_rows(rows.iloc[[int(rows["kappa"].to_numpy().argmax())]])[0]


def sentence_about(
    heads: pd.DataFrame, task: str | None = None, labels: pd.DataFrame | None = None
) -> str:
    """Return one sentence: which head stands out, that no head does, or that there is no head.

    Args:
        heads: The table of score_heads.
        task: The task that the model was trained on, if any.
        labels: The table of label_heads: what the head is called. None: it bears the probe's name.
    """
    if heads.empty:
        return "Every head of this model was pruned: there is no head to show."
    best = best_head(heads)
    if best is None:
        return "No head was scored: no probe found a row to score."
    probe = get_probe(best["probe"])
    label = head_label(best["layer"], best["head"])
    share, chance = per_cent(best["score"]), per_cent(best["chance"])
    if best["score"] < STANDS_OUT:
        return (
            f"No head stands out: the furthest above chance is {label}, which puts "
            f"{share} of its attention on {probe.target} (chance {chance})."
        )
    same = heads[(heads["probe"] == probe.name) & (heads["score"] >= STANDS_OUT)]
    others = len(same) - 1
    more = f"; so {'does' if others == 1 else 'do'} {others} more" if others else ""
    kind = kind_of(probe, task) if labels is None else labelled_kind(labels, best, task)
    looks = f"looks like {article(kind)}" if kind else "stands out"
    return (
        f"{label} {looks} ({best['score']:.2f}): "
        f"where it counts, it puts {share} of its attention on {probe.target} "
        f"(chance {chance}){more}."
    )


def kind_of(probe: ProbeEntry, task: str | None) -> str:
    """Return what a head with a high score is called; the task's own heads bear its name."""
    return f"{task} head" if probe.name == "sources" and task else probe.head_kind


def labelled_kind(labels: pd.DataFrame, best: Mapping[str, Any], task: str | None) -> str | None:
    """Return what a head is called by its label; None where it is in no class."""
    own = labels[(labels["layer"] == best["layer"]) & (labels["head"] == best["head"])]
    label = str(own["label"].iloc[0])
    if label not in probe_names():
        return None
    # An induction task can be solved by heads that are no induction heads.
    return kind_of(get_probe(label), None if task == "induction" else task)


def screen_data(
    heads: pd.DataFrame,
    labels: pd.DataFrame,
    maps: Mapping[tuple[int, int], Map],
    *,
    tokens: list[str],
    ids: list[int],
    facts: Mapping[str, Any],
    accuracy: Mapping[str, Any],
    sentence: str,
) -> dict[str, Any]:
    """Return the plain data of first_screen.json.

    Args:
        heads: The table of score_heads.
        labels: The table of label_heads.
        maps: Whole maps of one sequence; a probability p is stored as the whole number 255 p.
        tokens: Labels of that sequence.
        ids: Its token ids.
        facts: run, task, step, checkpoint_sha256, n_layers, n_heads.
        accuracy: loss, token_accuracy, exact_match, n_sequences.
        sentence: What the screen says about the heads.
    """
    probes = list(dict.fromkeys(heads["probe"]))
    best = best_head(heads)
    named = ("layer", "head", "probe", "score")
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: facts[name] for name in ("run", "task", "step", "checkpoint_sha256")},
        "accuracy": dict(accuracy),
        "n_layers": facts["n_layers"],
        "n_heads": facts["n_heads"],
        "probes": [described(get_probe(name), heads) for name in probes],
        "scores": [
            {"layer": layer, "head": head, "probe": probe, "score": plain(score)}
            for layer, head, probe, score in zip(
                *(heads[name].tolist() for name in named), strict=True
            )
        ],
        "labels": json_rows(labels),
        "sequence": {"tokens": tokens, "ids": ids},
        "patterns": {
            head_label(*pair): np.rint(255.0 * matrix).astype(int).tolist()
            for pair, matrix in maps.items()
        },
        "best": None if best is None else {name: best[name] for name in named},
        "sentence": sentence,
    }


def described(probe: ProbeEntry, heads: pd.DataFrame) -> dict[str, Any]:
    """Return what a screen says about a probe, with its chance in this table."""
    chance = heads.loc[heads["probe"] == probe.name, "chance"].iloc[0]
    return {
        "name": probe.name,
        "title": probe.title,
        "summary": probe.summary,
        "unit": probe.unit,
        "low": probe.low,
        "high": probe.high,
        "chance": plain(float(chance)),
    }
