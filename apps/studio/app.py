"""Entry script of the studio: the widgets that hold the address, then the page.

`headlab app` starts it; see launch.py for its options.
"""

import sys
from dataclasses import replace
from pathlib import Path

import streamlit as st

from apps.studio import loaders, panels, widgets
from apps.studio.launch import run_argument

HERE = Path(__file__).parent


def main() -> None:
    """Draw one pass of the studio."""
    # The icon is a file of ours: a named icon would be fetched from outside.
    st.set_page_config(
        page_title="Headlab", page_icon=HERE / "mark.svg", layout="wide", initial_sidebar_state=264
    )
    st.logo(str(HERE / "logo.svg"), size="large")
    st.html(HERE / "style.css")
    # Not in a folder called pages: Streamlit would run what is there without this script.
    page = st.navigation(
        [
            st.Page("screens/heads.py", title="Heads", default=True),
            st.Page("screens/ablate.py", title="Ablate", url_path="ablate"),
            st.Page("screens/prune.py", title="Prune", url_path="prune"),
        ],
        position="top",
    )
    try:
        runs = loaders.all_runs()
        if not runs:
            widgets.empty_home()
            return
        view, wrong = widgets.sidebar(runs, run_argument(sys.argv[1:]))
        widgets.unknown_in_address(wrong)
        problem = loaders.prompt_problem(view.run, view.prompt)
        if problem:
            widgets.notice(
                "notice_prompt", "The run's own example is shown instead of the prompt:", [problem]
            )
            view = replace(view, prompt="")
        widgets.banner(view)
        scene = panels.header(view, clicks_always_ablate=page.url_path != "")
        if scene is not None:
            st.session_state["scene"] = scene
            page.run()
    except Exception as error:  # any error of a page becomes one line on the screen
        widgets.failure(error)


main()
