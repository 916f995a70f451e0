"""Heads: which head does what, its attention map, and what the model loses without it."""

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st

from apps.studio import charts, loaders, tables, widgets
from apps.studio.address import View, all_heads, complaints
from lab.naming import head_label


def draw(view: View) -> None:
    """Draw the page."""
    screen = loaders.screen(view)
    heads = all_heads(view.run)
    widgets.unknown_in_address(
        complaints("head", widgets.asked("head"), heads)
        + complaints(
            "probe", widgets.asked("metric"), [probe["name"] for probe in screen["probes"]]
        ),
        "notice_page",
    )
    facts(view, screen)
    if not heads:
        st.text("Every head of this model was pruned; there is nothing to show.")
        return
    left, right = st.columns([10, 12], gap="large")
    with right:
        head = chosen_head(screen, heads)
    with left:
        head_scores(view, screen, head)  # before the map, which may have to wait for a model
    with right:
        head_map(view, screen, head)
    with left:
        baseline_beside_ablated(view, screen)


def facts(view: View, screen: Mapping[str, Any]) -> None:
    """Say in words which model this is and what was found in it."""
    with st.container(key="sentence"):
        st.text(screen["sentence"])
    model, reached = view.run.config.model, screen["accuracy"]
    exact = tables.shown("exact_match", reached["exact_match"])
    with st.container(key="facts"):
        st.text(
            f"Task {screen['task']}, {model.n_layers} layers x {model.n_heads} "
            f"heads, step {view.step:,}. Exact match {exact} on "
            f"{reached['n_sequences']:,} unseen sequences."
        )


def chosen_head(screen: Mapping[str, Any], heads: list[str]) -> str:
    """Return the head whose map is shown: the address's, or the best one."""
    best = screen["best"]
    label = heads[0] if best is None else head_label(best["layer"], best["head"])
    return st.selectbox(
        "Attention of head",
        heads,
        index=heads.index(label),
        key="head",
        bind="query-params",
        width=230,
    )


def head_scores(view: View, screen: Mapping[str, Any], chosen: str) -> None:
    """Draw the grid of scores with its two switches."""
    probes = {probe["name"]: probe for probe in screen["probes"]}
    names = list(probes)
    best = screen["best"]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        metric = st.selectbox(
            "Colour by",
            names,
            index=0 if best is None else names.index(best["probe"]),
            key="metric",
            bind="query-params",
            width=230,
        )
        ablate = st.toggle(
            "Click ablates",
            key="click",
            bind="query-params",
            help="Off: a click on the grid shows the head's map. On: it ablates or restores it.",
        )
    probe = probes[metric]
    chart = charts.head_grid(
        [row for row in screen["scores"] if row["probe"] == metric],
        shape=(screen["n_layers"], screen["n_heads"]),
        ablated=view.ablated,
        chosen=chosen,
        low=probe["low"],
        high=probe["high"],
        title=probe["title"],
    )
    widgets.clickable_grid(
        chart,
        view,
        ablate=ablate,
        alt_text=f"Grid of heads, layer by head, coloured by {probe['title']}",
    )
    chance = "n/a" if probe["chance"] is None else f"{probe['chance']:.2f}"
    widgets.note(
        "probe",
        f"{probe['summary']} Mean attention there, in the intact model; a head that looks "
        f"everywhere alike scores {chance}.",
    )


def head_map(view: View, screen: Mapping[str, Any], head: str) -> None:
    """Draw one head's map on the example, or on the prompt that was typed."""
    tokens, maps, high = loaders.maps(view, screen)
    if head not in maps:
        st.text("The sequence is too long to draw its map.")
        return
    with st.container(key="map"):
        st.altair_chart(
            charts.attention_map(maps[head], tokens, high=high),
            width="content",
            theme=None,
            alt=f"Attention map of {head}: query by key",
        )
    if head in view.ablated:
        widgets.note("map", f"{head} is ablated: it still looks, but what it reads is thrown away.")
    elif view.ablated:
        widgets.note("map", f"{head} as it looks while {' '.join(view.ablated)} are ablated.")
    else:
        widgets.note("map", "Each row sums to 1. A token sees itself and what stands before it.")


def baseline_beside_ablated(view: View, screen: Mapping[str, Any]) -> None:
    """Compare loss, accuracies and the answer with and without the ablated heads."""
    before = loaders.baseline(view, screen)
    columns = [("Baseline", "baseline", before)]
    if view.ablated:
        columns.append(("Ablated", "ablated", loaders.numbers(view)))
    st.html(tables.comparison(columns))
    count = f"Each measured on {before['n_sequences']:,} unseen sequences."
    if not view.ablated and not view.prompt:
        hint = "Switch on Click ablates, then click a head: what does the model lose without it?"
        widgets.note("numbers", f"{count} {hint}")
        return
    text = view.prompt or loaders.example_text(screen, view.run)
    whole = loaders.reading(loaders.intact(view), text)
    answers = {"expected": whole.expected, "baseline": whole.answer}
    if view.ablated:
        answers["ablated"] = loaders.reading(view, text).answer
    with st.container(key="answers"):
        st.altair_chart(
            charts.answer_strip(answers, whole.expected),
            width="content",
            theme=None,
            alt="Answers symbol by symbol: expected, baseline, ablated",
        )
    widgets.note(
        "numbers", f"{count} Answers: the likeliest symbol each time; wrong ones are underlined."
    )
    st.download_button(
        "Numbers as JSON",
        data=json.dumps(loaders.record(view, columns, answers), indent=1),
        file_name=f"{view.run.name}-ablation.json",
        mime="application/json",
        on_click="ignore",
        type="tertiary",
        icon=":material/download:",
    )


draw(st.session_state["view"])
