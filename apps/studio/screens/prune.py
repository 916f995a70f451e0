"""Prune: remove the chosen heads for good, as a run of its own that is read back and compared."""

import streamlit as st

from apps.studio import loaders, panels, pruning, tables, widgets
from apps.studio.address import View
from apps.studio.panels import Scene


def draw(scene: Scene) -> None:
    """Draw the page."""
    view = scene.view
    left, right = st.columns([10, 12], gap="medium")
    with left:
        panels.head_scores(scene)
    with right:
        panels.numbers(scene, constant=True)
        if view.ablated:
            filled = "" if view.mode == "zero" else " The mean is one over all positions: a bias."
            widgets.note("numbers", f"Ablated: by gates, before anything is removed.{filled}")
        export(view)
        result(view)
    how_small(view)


def how_small(view: View) -> None:
    """Show what is left as heads go, from the run's report, and let a step of it be chosen."""
    curve = loaders.pruning_curve(view)
    if curve is None:
        return
    st.subheader("How small can it get?", anchor=False)
    left, right = st.columns([12, 10], gap="medium")
    with right:
        step = st.slider(
            "Heads to remove, in the greedy order",
            0,
            len(curve.gone) - 1,
            key=f"curve_step_{view.run.name}",
            width=320,
        )
        st.text(" ".join(curve.gone[step]) or "no head")
        st.button(
            "Choose these heads",
            on_click=choose,
            args=(sorted(curve.gone[step]),),
            icon=":material/checklist:",
        )
        widgets.note(
            "curve",
            "In each step the head whose ablation costs least goes, chosen on other sequences than "
            f"those shown. Grey: {curve.n_orders} random orders. From the run's report.",
        )
    with left, st.container(key="curve"):
        st.altair_chart(
            pruning.curve_chart(curve, step),
            width="content",
            theme=None,
            alt="Exact match on held-out sequences by heads removed, greedy and random orders",
        )


def choose(labels: list[str]) -> None:
    """Ablate some heads: the callback of the button."""
    st.session_state["abl"] = labels


def export(view: View) -> None:
    """Offer to write the pruned model; a click writes it, reads it back and compares."""
    if not view.ablated:
        st.text("Click heads on the grid to choose what to remove.")
        return
    with st.form("export", border=False):
        name = st.text_input(
            "Name of the new run",
            value=free_name(view),
            max_chars=100,
            key=f"new_run_{view.run.name}",
        )
        count = "1 head" if len(view.ablated) == 1 else f"{len(view.ablated)} heads"
        asked = st.form_submit_button(
            f"Remove {count} and verify", type="primary", icon=":material/content_cut:"
        )
    if asked:
        st.session_state.pop("exported", None)
        try:
            with st.spinner("Writing, reading back and comparing", show_time=True):
                done = loaders.export_pruned(view, name.strip())
        except (ValueError, OSError) as error:
            widgets.notice("failure_export", "Nothing was written:", [str(error)])
        else:
            st.session_state["exported"] = {**done, "view": made_from(view)}


def free_name(view: View) -> str:
    """Suggest a name that no run has."""
    taken = {run.name for run in loaders.all_runs()}
    base = f"{view.run.name[:80]}-pruned"
    names = [base, *(f"{base}-{i}" for i in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def made_from(view: View) -> tuple[object, ...]:
    """Return what a result belongs to; under any other view it is not shown."""
    return (*view.identity, view.ablated, view.mode)


def result(view: View) -> None:
    """Show the certificate of the last export of this very view."""
    done = st.session_state.get("exported")
    if done is None or done["view"] != made_from(view):
        return
    proof = done["certificate"]
    st.text(f"Written as {done['name']} and read back:")
    st.html(
        tables.comparison(
            [
                ("Gated", "baseline", done["gated"]),
                ("Pruned, read back", "ablated", done["pruned"]),
            ]
        )
    )
    st.html(tables.before_and_after(proof))
    widgets.note(
        "proof",
        f"Largest difference of a logit: {proof['max_logit_difference']:.1e}, over "
        f"{proof['n_sequences']:,} sequences (allowed: {proof['limit']:.0e}, {proof['dtype']}).",
    )
    st.button(
        "Open the pruned run",
        on_click=open_run,
        args=(done["name"],),
        icon=":material/arrow_forward:",
    )


def open_run(name: str) -> None:
    """Show another run, whole: the callback of the button."""
    st.session_state["run"] = name
    st.session_state["abl"] = []


draw(st.session_state["scene"])
