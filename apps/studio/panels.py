"""Parts of pages that several pages show: the header, the grid, a head's map, numbers, answers.

Each draws one thing where it is called; the page decides the order and the columns.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from apps.studio import charts, effects, joint, loaders, tables, widgets
from apps.studio.address import View, all_heads, click_complaints, complaints
from lab.naming import counted, head_label
from probes.head_classes import shown_label
from probes.labels.evidence_card import card_facts, card_title
from probes.number_text import decimals

Columns = list[tuple[str, str, dict[str, Any]]]
"""For each model and for the change: title, class of the column, numbers."""

AT_ONCE = 40
"""Measure up to this many ablated models at once; more need a click on a button."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Everything that a page shows."""

    view: View
    screen: Mapping[str, Any]
    """Data of the checkpoint before any ablation or prompt."""
    head: str
    """The head whose map is shown."""
    probe: Mapping[str, Any]
    """The probe that the grid is coloured by."""
    ablate: bool
    """Whether a click on the grid ablates a head, rather than choosing it."""


def header(view: View, *, clicks_always_ablate: bool) -> Scene | None:
    """Draw the summary of the model and the toolbar; return None if it has no heads."""
    screen, heads = loaders.screen(view), all_heads(view.run)
    probes = {probe["name"]: probe for probe in screen["probes"]}
    widgets.unknown_in_address(
        complaints("head", widgets.asked("head"), heads)
        + complaints("probe", widgets.asked("metric"), list(probes))
        + click_complaints(widgets.asked("click")),
        "notice_page",
    )
    facts(view, screen)
    if not heads:  # the sentence says so
        return None
    best = screen["best"]
    with st.container(key="toolbar", horizontal=True, vertical_alignment="bottom"):
        metric = st.selectbox(
            "Colour by",
            list(probes),
            index=0 if best is None else list(probes).index(best["probe"]),
            key="metric",
            bind="query-params",
            width=200,
        )
        label = heads[0] if best is None else head_label(best["layer"], best["head"])
        head = st.selectbox(
            "Attention of head",
            heads,
            index=heads.index(label),
            key="head",
            bind="query-params",
            width=200,
        )
        ablate = clicks_always_ablate or st.toggle(
            "Click ablates",
            key="click",
            bind="query-params",
            help="Off: a click on the grid shows the head's map. On: it ablates or restores it.",
        )
    return Scene(view=view, screen=screen, head=head, probe=probes[metric], ablate=ablate)


def facts(view: View, screen: Mapping[str, Any]) -> None:
    """Describe the model and its heads in words."""
    with st.container(key="sentence"):
        st.text(screen["sentence"])
    model, reached = view.run.config.model, screen["accuracy"]
    exact = tables.shown("exact_match", reached["exact_match"])
    with st.container(key="facts"):
        st.text(
            f"Task {screen['task']}, {counted(model.n_layers, 'layer')} x "
            f"{counted(model.n_heads, 'head')}, "
            f"step {view.step:,}. Exact match {exact} on "
            f"{counted(reached['n_sequences'], 'unseen sequence')}."
        )


def head_scores(scene: Scene) -> None:
    """Draw the grid of scores; a click ablates a head or chooses it."""
    probe, screen = scene.probe, scene.screen
    chart = charts.head_grid(
        [row for row in screen["scores"] if row["probe"] == probe["name"]],
        shape=(screen["n_layers"], screen["n_heads"]),
        ablated=scene.view.ablated,
        chosen=scene.head,
        low=probe["low"],
        high=probe["high"],
        title=probe["title"],
        labels={name: row["label"] for name, row in labels_of(screen).items()},
    )
    widgets.clickable_grid(
        chart,
        scene.view,
        ablate=scene.ablate,
        alt_text=f"Grid of heads, layer by head, coloured by {probe['title']}",
    )
    chance = decimals(probe["chance"], missing="n/a")
    widgets.note(
        "probe",
        f"{probe['summary']} Mean attention there, in the intact model; a head with "
        f"uniform attention scores {chance}.",
    )


def labels_of(screen: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the row of the labels table of each head, by the head's label."""
    return {
        head_label(row["layer"], row["head"]): row
        | {"label": shown_label(row["label"], screen["task"])}
        for row in screen["labels"]
    }


def head_card(scene: Scene) -> None:
    """Show the label of the chosen head, its reason and its evidence."""
    row = labels_of(scene.screen)[scene.head]
    with st.container(key="card"):
        with st.container(key="card_title"):
            st.text(card_title(row))
        st.text(row["reason"])
        with st.expander("The evidence, in the intact model"):
            st.html(tables.facts(card_facts(row)))


def head_map(view: View, scene: Scene, *, name: str = "map", size: int = 460) -> None:
    """Draw the chosen head's map on the example or the typed prompt."""
    tokens, maps, high = loaders.maps(view, scene.screen)
    if scene.head not in maps:
        st.text("The sequence is too long to draw its map.")
        return
    with st.container(key=name):
        widgets.drawing(
            charts.attention_map(maps[scene.head], tokens, high=high, size=size),
            f"Attention map of {scene.head}: query by key",
        )


def numbers(scene: Scene, *, constant: bool = False) -> Columns:
    """Show loss and accuracies, with and without the ablated heads; return them too."""
    view = scene.view
    if not view.ablated:
        columns: Columns = [("Baseline", "baseline", dict(scene.screen["accuracy"]))]
        st.html(tables.comparison(columns))
        return columns
    found = effects.effect(view, constant=constant)
    columns = [("Baseline", "baseline", found.baseline), ("Ablated", "ablated", found.ablated)]
    st.html(tables.comparison(columns, found.change))
    return [*columns, ("Change", "change", found.change)]


def about_numbers(view: View, columns: Columns) -> str:
    """Say how many sequences the numbers are of, and how donors are used."""
    of = f"Numbers of {counted(columns[0][2]['n_sequences'], 'unseen sequence')}"
    if not view.ablated:
        return f"{of}."
    if view.mode != "resample":
        return f"{of}, resampled for the interval."
    return (
        f"{of}, resampled for the interval. The effect is the mean over donors. "
        "Answers, next symbols and maps use the first donor."
    )


def together(view: View) -> None:
    """Show the effect of two or more ablated heads together and one by one."""
    if len(view.ablated) < 2:
        return
    st.subheader("Together and one by one", anchor=False)
    runs = effects.joint_runs(view)
    rows = widgets.long_work(
        effects.joint_key(view),
        f"Measure {counted(len(view.ablated), 'head')} one by one",
        lambda progress: effects.joint_effect(view, progress),
        at_once=runs <= AT_ONCE,
    )
    if rows is None:
        widgets.note("work", f"It takes {counted(runs, 'ablated model')}.")
        return
    with st.container(key="joint"):
        st.text(joint.joint_sentence(rows))
        with st.expander("The numbers, head by head"):
            st.html(tables.plain_table(joint.HEADER, joint.joint_rows(rows)))
            widgets.note(
                "joint",
                f"{joint.RULE} On {counted(rows[0]['n_sequences'], 'unseen sequence')}, as in "
                "`headlab ablate`.",
            )


def answers(scene: Scene) -> dict[str, list[str]]:
    """Show the generated answers, with and without the ablated heads; return them too."""
    view, text = scene.view, loaders.text_on_show(scene.view, scene.screen)
    whole = loaders.reading(loaders.intact(view), text)
    rows = {"expected": whole.expected, "baseline": whole.answer}
    if view.ablated:
        rows["ablated"] = loaders.reading(view, text).answer
    with st.container(key="answers"):
        widgets.drawing(
            charts.answer_strip(rows, whole.expected),
            "Answers symbol by symbol: expected, baseline, ablated",
        )
    return rows


def how_answered(view: View) -> str:
    """Say how the symbols of an answer are chosen."""
    if view.temperature == 0:
        return "Answers: the likeliest symbol each time"
    return f"Answers: drawn at temperature {view.temperature:g}, with seed 0"


def record_button(view: View, columns: Columns, rows: dict[str, list[str]]) -> None:
    """Offer the comparison with all its digits."""
    st.download_button(
        "Numbers as JSON",
        data=json.dumps(loaders.record(view, columns, rows), indent=1),
        file_name=f"{view.run.name}-ablation.json",
        mime="application/json",
        on_click="ignore",
        type="tertiary",
        icon=":material/download:",
    )
