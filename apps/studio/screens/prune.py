"""Prune: remove the chosen heads permanently, as a new run that is read back and compared."""

import streamlit as st

from apps.studio import effects, loaders, panels, pruning, tables, widgets
from apps.studio.address import View, all_heads
from apps.studio.panels import Scene
from lab.naming import counted
from probes.number_text import per_cent


def draw(scene: Scene) -> None:
    """Draw the page."""
    view = scene.view
    left, right = st.columns([10, 12], gap="medium")
    with left:
        panels.head_scores(scene)
    with right:
        columns = panels.numbers(scene, constant=True)
        gates = "Ablated: with gates, before pruning." if view.ablated else ""
        mean = " The mean is over all positions, so it is a bias." if view.mode == "mean" else ""
        widgets.note("numbers", f"{panels.about_numbers(view, columns)} {gates}{mean}".rstrip())
        export(view)
        result(view)
    if cannot_be_removed(view) is None:
        how_small(view)


def cannot_be_removed(view: View) -> str | None:
    """Return why pruning cannot reproduce this ablation; None if it can."""
    if view.mode == "resample":
        return "Pruning replaces a head with zeros or a constant: choose zero or mean on the left."
    if view.gate:
        return "Pruning removes the whole head: set the gate to 0 on the left."
    return None


def how_small(view: View) -> None:
    """Show the pruning curve; the user may choose one of its steps."""
    n_heads = len(all_heads(view.run))
    if n_heads < 2:
        return
    st.subheader("How small can it get?", anchor=False)
    curve, source = loaders.reported_curve(view), "From the run's report."
    if curve is None:
        source = "Measured here."
        curve = widgets.long_work(
            effects.curve_key(view),
            "Measure the pruning curve",
            lambda progress: effects.measured_curve(view, progress),
            at_once=False,
        )
    if curve is None:
        widgets.note(
            "work",
            "The report has no curve for this checkpoint and mode. Measuring it removes heads "
            "one by one, the cheapest first, and in 20 random orders. It takes seconds for 8 "
            "heads, minutes for 50.",
        )
        return
    left, right = st.columns([10, 12], gap="medium")
    with right:
        step = st.slider(
            "Heads to remove, in the greedy order",
            0,
            len(curve.gone) - 1,
            key=f"curve_step_{view.run.name}",
            width=320,
        )
        st.text(" ".join(curve.gone[step]) or "no head")
        widgets.note("step", pruning.step_words(curve, step))
        st.button(
            "Choose these heads",
            on_click=choose,
            args=(sorted(curve.gone[step]),),
            icon=":material/checklist:",
        )
        st.text(f"Heads that can be removed, of {n_heads}, if exact match may fall by")
        header = ["", *(per_cent(within) for within in pruning.WITHIN)]
        st.html(tables.plain_table(header, pruning.spare_rows(curve)))
    with left, st.container(key="curve"):
        widgets.drawing(
            pruning.curve_chart(curve, step),
            "Exact match on held-out sequences by heads removed, greedy and random orders",
        )
        widgets.note(
            "curve",
            "Blue: each step removes the head whose ablation costs least, chosen on other "
            f"sequences than those shown. Grey: {curve.n_orders} random orders. {source}",
        )


def choose(labels: list[str]) -> None:
    """Ablate some heads: the callback of the button."""
    st.session_state["abl"] = labels


def export(view: View) -> None:
    """Draw the form that writes the pruned model, reads it back and compares."""
    if not view.ablated:
        st.text("Click heads on the grid to choose what to remove.")
        return
    if problem := cannot_be_removed(view):
        st.text(problem)
        return
    with st.form("export", border=False):
        name = st.text_input(
            "Name of the new run",
            value=free_name(view),
            max_chars=100,
            key=f"new_run_{view.run.name}",
        )
        count = counted(len(view.ablated), "head")
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
    """Return the part of a view that a result depends on."""
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
                ("Heads ablated", "baseline", done["gated"]),
                ("Heads removed", "ablated", done["pruned"]),
            ]
        )
    )
    st.html(tables.before_and_after(proof))
    widgets.note(
        "proof",
        f"Largest difference of a logit: {proof['max_logit_difference']:.1e}, over "
        f"{counted(proof['n_sequences'], 'sequence')} (allowed: {proof['limit']:.0e}, "
        f"{proof['dtype']}).",
    )
    st.button(
        "Open the pruned run",
        on_click=open_run,
        args=(done["name"],),
        icon=":material/arrow_forward:",
    )


def open_run(name: str) -> None:
    """Show another run with all heads: the callback of the button."""
    st.session_state["run"] = name
    st.session_state["abl"] = []


draw(st.session_state["scene"])
