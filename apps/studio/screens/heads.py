"""Heads: what each head does, its attention map, and the effect of ablating it."""

import streamlit as st

from apps.studio import panels, widgets
from apps.studio.address import View
from apps.studio.panels import Scene


def draw(scene: Scene) -> None:
    """Draw the page."""
    left, right = st.columns([10, 12], gap="medium")
    with left:  # first, because the map may wait for a model
        panels.head_scores(scene)
    with right:
        panels.head_map(scene.view, scene)
        panels.head_card(scene)
        widgets.note("map", about_map(scene.view, scene.head))
    with left:
        baseline_beside_ablated(scene)


def about_map(view: View, head: str) -> str:
    """Return the small print under the map."""
    if head in view.ablated and not view.gate:
        return f"{head} is ablated: it still attends, but its output is discarded."
    if view.ablated:
        are = "is" if len(view.ablated) == 1 else "are"
        return f"{head} while {' '.join(view.ablated)} {are} ablated."
    return f"{head}: each row sums to 1. A token attends to itself and to earlier tokens."


def baseline_beside_ablated(scene: Scene) -> None:
    """Compare loss, accuracies and the answer with and without the ablated heads."""
    view = scene.view
    columns = panels.numbers(scene)
    count = panels.about_numbers(view, columns)
    if not view.ablated and not view.prompt and not view.temperature:
        hint = "Switch on Click ablates, then click a head to see what the model loses."
        widgets.note("numbers", f"{count} {hint}")
        return
    rows = panels.answers(scene)
    widgets.note("numbers", f"{count} {panels.how_answered(view)}; wrong symbols are underlined.")
    panels.record_button(view, columns, rows)


draw(st.session_state["scene"])
