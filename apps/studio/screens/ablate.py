"""Ablate: baseline and ablated model side by side."""

import streamlit as st

from apps.studio import charts, loaders, panels, widgets
from apps.studio.address import View, place_complaints
from apps.studio.panels import Scene


def draw(scene: Scene) -> None:
    """Draw the page."""
    left, right = st.columns([10, 12], gap="medium")
    with left:
        panels.head_scores(scene)
    with right:
        columns = panels.numbers(scene)
        rows = panels.answers(scene)
        hint = "" if scene.view.ablated else "Click heads on the grid to ablate them. "
        widgets.note(
            "numbers",
            f"{hint}{panels.about_numbers(scene.view, columns)} Wrong symbols are underlined.",
        )
        panels.record_button(scene.view, columns, rows)
    panels.together(scene.view)
    next_symbol(scene)
    maps(scene)


def next_symbol(scene: Scene) -> None:
    """Compare the probabilities of the next symbol at one place of the answer."""
    coming = loaders.next_tokens(scene.view, loaders.text_on_show(scene.view, scene.screen))
    place, last = 1, len(coming.expected)
    if last > 1:
        widgets.unknown_in_address(place_complaints(widgets.asked("place"), last), "notice_place")
    with st.container(horizontal=True, vertical_alignment="center", gap="large"):
        st.subheader("Next symbol", anchor=False, width="content")
        if last > 1:
            place = st.slider(
                "Place in the answer",
                1,
                last,
                key="place",
                bind="query-params",
                width=320,
                help="The model has read the prompt and the right answer up to here.",
            )
    rows, expected = coming.places[place - 1], coming.expected[place - 1]
    for column, kind in zip(st.columns(2, gap="large"), kinds(scene.view), strict=False):
        with column:
            widgets.column_title(kind, scene.view, "next")
            with st.container(key=f"next_{kind}"):
                widgets.drawing(
                    charts.token_bars(rows, kind, expected),
                    f"Probability of the next symbol, {kind}",
                )


def maps(scene: Scene) -> None:
    """Compare one head's attention with and without the ablated heads, on one scale."""
    st.subheader(f"Attention of {scene.head}", anchor=False)
    for column, kind in zip(st.columns(2, gap="large"), kinds(scene.view), strict=False):
        with column:
            widgets.column_title(kind, scene.view, "map")
            view = scene.view if kind == "ablated" else loaders.intact(scene.view)
            panels.head_map(view, scene, name=f"map_{kind}", size=420)


def kinds(view: View) -> list[str]:
    """Return the models to show side by side."""
    return ["baseline", "ablated"] if view.ablated else ["baseline"]


draw(st.session_state["scene"])
