"""Widgets of all pages: the sidebar that holds the address, the banner, notices and the grid.

The widgets bound to the address are made in the entry script, before any page; pages read the View.
Text from an address, a user or a file goes through st.text, which interprets no markdown.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, cast

import altair as alt
import streamlit as st

from apps.studio.address import (
    HOTTEST,
    MODES,
    Mode,
    View,
    all_heads,
    all_steps,
    clicked_heads,
    complaints,
    key_complaints,
    number_complaints,
    toggle,
)
from lab.naming import counted
from lab.run_folders import Run, runs_home

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

MOST_FINISHED = 64
"""Largest number of remembered results of long work."""

logger = logging.getLogger(__name__)


def sidebar(runs: Sequence[Run], preferred: str | None) -> tuple[View, list[str]]:
    """Draw the widgets that hold the address; return the view, and errors in the address.

    Args:
        runs: The complete runs, at least one.
        preferred: Name of the run to show if the address names none.
    """
    by_name = {run.name: run for run in runs}
    names = list(by_name)
    first = names.index(preferred) if preferred in by_name else 0
    wrong = key_complaints({key: asked(key) for key in st.query_params})
    wrong += complaints("run", asked("run"), names)
    # No format_func on bound widgets: the address would contain the formatted words.
    with st.sidebar:
        name = st.selectbox("Run", names, index=first, key="run", bind="query-params")
        run = by_name.get(name, runs[first])
        steps = [str(step) for step in all_steps(run)]
        wrong += complaints("checkpoint", asked("ckpt"), steps)
        step = st.selectbox(
            "Checkpoint (step)",
            steps,
            key="ckpt",
            bind="query-params",
            help="The first entry is the trained model.",
        )
        prompt = st.text_input(
            "Prompt",
            key="prompt",
            bind="query-params",
            max_chars=256,
            placeholder="the run's own example",
            help="Symbols without spaces, at most as many as the task has.",
        )
        wrong += number_complaints("temperature", asked("T"), HOTTEST)
        temperature = st.number_input(
            "Temperature",
            min_value=0.0,
            max_value=HOTTEST,
            step=0.1,
            key="T",
            bind="query-params",
            help="0 takes the most probable symbol; above 0, symbols are drawn with seed 0.",
        )
        heads = all_heads(run)
        wrong += complaints("head", asked("abl"), heads, many=True)
        ablated = st.multiselect(
            "Ablated heads",
            heads,
            key="abl",
            bind="query-params",
            placeholder="none",
            help="Their output is replaced before W_O. Choose here, or click them on the grid.",
        )
        wrong += complaints("mode", asked("mode")[:1], MODES)
        mode = st.segmented_control(
            "Replaced by",
            MODES,
            default="zero",
            required=True,
            key="mode",
            bind="query-params",
            help="zero: zeros. mean: the head's mean at each position over other sequences. "
            "resample: its output on other sequences, one at a time; the effect is averaged.",
        )
        wrong += number_complaints("gate", asked("gate"), 1.0)
        gate = st.number_input(
            "Gate",
            min_value=0.0,
            max_value=1.0,
            step=0.1,
            key="gate",
            bind="query-params",
            help="Share of its own output that an ablated head keeps: 0 nothing, 1 everything.",
        )
        st.button(
            "Restore all heads",
            on_click=restore_all,
            disabled=not ablated,
            icon=":material/undo:",
            width="stretch",
        )
    view = View(
        run=run,
        step=int(step),
        ablated=tuple(head for head in heads if head in ablated),
        mode=cast(Mode, mode or MODES[0]),  # an empty value in the address chooses no mode
        gate=float(gate or 0.0),
        prompt=(prompt or "").strip(),
        temperature=float(temperature or 0.0),
    )
    return view, wrong


def asked(name: str) -> list[str]:
    """Return the values that the address gives for a parameter."""
    return st.query_params.get_all(name)


def restore_all() -> None:
    """Empty the list of ablated heads: the callback of every restore button."""
    st.session_state["abl"] = []


def banner(view: View) -> None:
    """Say on every page, and while scrolling, which heads are ablated.

    It also appears without ablated heads, so that the page does not move under the pointer at the
    first click.
    """
    if not view.ablated:
        with st.container(key="all_in_place"):
            st.text("No head is ablated.")
        return
    count = counted(len(view.ablated), "head")
    with st.container(key="banner", horizontal=True, vertical_alignment="center"):
        st.text(f"{count} ablated ({view.how}): {' '.join(view.ablated)}")
        st.space("stretch")
        st.button("Restore all", on_click=restore_all, key="banner_restore", type="tertiary")


def notice(name: str, title: str, lines: Sequence[str]) -> None:
    """Show a framed message; a name that begins with failure_ makes it red."""
    with st.container(key=name):
        st.text("\n".join([title, *lines]))


def unknown_in_address(lines: Sequence[str], name: str = "notice_address") -> None:
    """List the errors in the address until the user dismisses them.

    The browser removes wrong values from the address at once; a notice that disappeared with them
    would move the page under the pointer.
    """
    state = st.session_state
    shown = state[name] = list(dict.fromkeys([*state.get(name, []), *lines]))
    if not shown or shown == state.get(f"{name}_read"):
        return
    with st.container(key=name, horizontal=True, vertical_alignment="center"):
        title = "The address contains unknown values; the defaults are used instead:"
        st.text("\n".join([title, *shown]))
        st.space("stretch")
        st.button(
            "Dismiss", key=f"dismiss_{name}", type="tertiary", on_click=read_notice, args=(name,)
        )


def read_notice(name: str) -> None:
    """Put a notice away: the callback of its button."""
    st.session_state[f"{name}_read"] = st.session_state[name]


def failure(error: Exception) -> None:
    """Show the error of a page in one line."""
    logger.error("a page could not be drawn", exc_info=error)
    line = (str(error).splitlines() or [""])[0]
    if not isinstance(error, ValueError | OSError):  # the messages of these two are for users
        line = f"{type(error).__name__}: {line}"
    notice("failure_page", "This could not be drawn:", [line])


def note(name: str, text: str) -> None:
    """Write small print under a chart."""
    with st.container(key=f"note_{name}"):
        st.text(text)


@st.cache_resource(show_spinner=False)
def finished_work() -> dict[Hashable, Any]:
    """Return the results of long work by their keys; see `long_work`."""
    return {}


def long_work(
    key: tuple[Hashable, ...],
    label: str,
    work: Callable[[Progress], Any],
    *,
    at_once: bool,
) -> Any:
    """Return the result of long work, computed once; None before the user starts it.

    It shows its progress. If the user does something else meanwhile, it stops.

    Args:
        key: The kind of work, and everything that its result depends on.
        label: Name of the work, for its button and its progress.
        work: The work; it calls its argument with (steps done, steps in all).
        at_once: Whether to start it without a click.
    """
    done = finished_work()
    if key not in done:
        with st.container(key=f"work_{key[0]}"):
            place = st.empty()
            if not (at_once or place.button(label, icon=":material/play_arrow:")):
                return None
            bar = place.progress(0.0, label)

            def show(step: int, steps: int) -> None:
                bar.progress(min(1.0, step / steps), f"{label}: {step:,} of {steps:,}")

            result = work(show)
            place.empty()
        while len(done) >= MOST_FINISHED:
            done.pop(next(iter(done)), None)
        done[key] = result
    return done[key]


def drawing(chart: Any, alt_text: str) -> None:
    """Show a chart at its own size, with a text for screen readers."""
    st.altair_chart(chart, width="content", theme=None, alt=alt_text)


def column_title(kind: str, view: View, name: str) -> None:
    """Draw the title of a column: the model that it shows, in that model's colour."""
    with st.container(key=f"title_{kind}_{name}"):
        st.text("Baseline" if kind == "baseline" else f"Ablated: {' '.join(view.ablated)}")


def empty_home() -> None:
    """Say how to train a first run."""
    st.header("No run yet")
    st.text(f"A run is a trained model. There are no runs in {runs_home().resolve()}.")
    st.text("Train the reversal model and probe its heads (a minute), then reload this page:")
    st.code("headlab demo", language=None)


def clickable_grid(chart: alt.LayerChart, view: View, *, ablate: bool, alt_text: str) -> None:
    """Show a head grid whose clicks choose a head (address: head) or ablate it (address: abl).

    A chart reports no second click on the same cell, so each click gives it a new key.
    """
    generation = st.session_state.setdefault("grid_generation", 0)
    with st.container(key="grid"):
        st.altair_chart(
            chart,
            width="content",
            theme=None,
            key=f"grid_{generation}",
            on_select=partial(grid_clicked, generation, all_heads(view.run), ablate),
            selection_mode="pick",
            alt=alt_text,
        )


def grid_clicked(generation: int, heads: Sequence[str], ablate: bool) -> None:
    """Ablate, restore or choose the head that was clicked on the grid of this generation."""
    state = st.session_state
    if state["grid_generation"] != generation:
        # A browser may send the click on an old chart again with the next one; counting it twice
        # would undo it.
        return
    clicked = clicked_heads(state.get(f"grid_{generation}"), heads)
    if ablate:
        state["abl"] = toggle(state["abl"], clicked, heads)
    elif clicked:
        state["head"] = clicked[-1]
    state["grid_generation"] = generation + 1
