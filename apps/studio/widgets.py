"""What every page shares: the sidebar that holds the address, the banner, notices and the grid.

The widgets bound to the address are made in the entry script, before any page; pages read the View.
Text that comes from an address, a person or a file goes through st.text, which knows no markdown.
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
"""Results of long work that are remembered."""

logger = logging.getLogger(__name__)


def sidebar(runs: Sequence[Run], preferred: str | None) -> tuple[View, list[str]]:
    """Draw the widgets that hold the address; return what they say, and what was wrong with it.

    Args:
        runs: The complete runs, at least one.
        preferred: Name of the run to show where the address names none.
    """
    by_name = {run.name: run for run in runs}
    names = list(by_name)
    first = names.index(preferred) if preferred in by_name else 0
    wrong = key_complaints({key: asked(key) for key in st.query_params})
    wrong += complaints("run", asked("run"), names)
    # No format_func on what is bound: the address would carry the formatted words.
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
            help="The first of the list is the trained model.",
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
            help="0 answers with the most probable symbol; above, symbols are drawn, with seed 0.",
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
            help="Zeros; the head's mean at each position over other sequences; or what it writes "
            "on other sequences in turn, and the mean of what that does.",
        )
        wrong += number_complaints("gate", asked("gate"), 1.0)
        gate = st.number_input(
            "Gate",
            min_value=0.0,
            max_value=1.0,
            step=0.1,
            key="gate",
            bind="query-params",
            help="How much of its own output an ablated head keeps: 0 nothing, 1 everything.",
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
        mode=cast(Mode, mode or MODES[0]),  # an empty one in the address chooses none
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

    It is there when none is, too: a page that moved down at the first click would put another head
    under the pointer.
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
    """Name what the address asked for in vain, until the person has read it.

    A browser takes wrong values out of the address at once; a notice that went with them would move
    the page under the pointer.
    """
    state = st.session_state
    shown = state[name] = list(dict.fromkeys([*state.get(name, []), *lines]))
    if not shown or shown == state.get(f"{name}_read"):
        return
    with st.container(key=name, horizontal=True, vertical_alignment="center"):
        title = "The address names what is not here; the default is shown instead:"
        st.text("\n".join([title, *shown]))
        st.space("stretch")
        st.button(
            "Dismiss", key=f"dismiss_{name}", type="tertiary", on_click=read_notice, args=(name,)
        )


def read_notice(name: str) -> None:
    """Put a notice away: the callback of its button."""
    st.session_state[f"{name}_read"] = st.session_state[name]


def failure(error: Exception) -> None:
    """Show one clear line for whatever went wrong in a page."""
    logger.error("a page could not be drawn", exc_info=error)
    line = (str(error).splitlines() or [""])[0]
    if not isinstance(error, ValueError | OSError):  # those two are worded for people
        line = f"{type(error).__name__}: {line}"
    notice("failure_page", "This could not be drawn:", [line])


def note(name: str, text: str) -> None:
    """Write small print under a chart."""
    with st.container(key=f"note_{name}"):
        st.text(text)


@st.cache_resource(show_spinner=False)
def finished_work() -> dict[Hashable, Any]:
    """Return what long work has given so far, by what it depends on; see `long_work`."""
    return {}


def long_work(
    key: tuple[Hashable, ...],
    label: str,
    work: Callable[[Progress], Any],
    *,
    at_once: bool,
) -> Any:
    """Return what some long work gives, done once; None: nobody has asked for it yet.

    It shows how far it is, and a person who does something else meanwhile gives it up.

    Args:
        key: What kind of work it is, and all that its result depends on.
        label: What the work is, on its button and beside its progress.
        work: The work; it calls its argument with (steps done, steps in all).
        at_once: Whether it is short enough to be done without being asked for.
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


def column_title(kind: str, view: View, name: str) -> None:
    """Head a column with the model that it shows, in that model's colour."""
    with st.container(key=f"title_{kind}_{name}"):
        st.text("Baseline" if kind == "baseline" else f"Ablated: {' '.join(view.ablated)}")


def empty_home() -> None:
    """Say how to get a run where there is none."""
    st.header("No run yet")
    st.text(f"A run is a trained model. There is none in {runs_home().resolve()}.")
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
        # A browser may send the click on a chart that is gone along with the next one: counted
        # twice, it would undo it.
        return
    clicked = clicked_heads(state.get(f"grid_{generation}"), heads)
    if ablate:
        state["abl"] = toggle(state["abl"], clicked, heads)
    elif clicked:
        state["head"] = clicked[-1]
    state["grid_generation"] = generation + 1
