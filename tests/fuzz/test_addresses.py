"""Addresses of the studio: any value of any parameter is a state or a message, never a path."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit as st_app
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from apps.studio.address import HOTTEST, complaints, number_complaints
from apps.studio.launch import ENTRY
from apps.studio.loaders import prompt_problem
from lab.run_folders import open_run

Watch = Callable[..., contextlib.AbstractContextManager[None]]

OWN = (ENTRY.parents[2], Path(sys.prefix), Path(sys.base_prefix))
"""Where Streamlit reads: our style sheet, and the packages that are installed."""
NAMES = ("run", "ckpt", "abl", "mode", "prompt", "head", "metric", "click", "T", "gate")
GOOD = {
    "run": ("tiny", "other"),
    "ckpt": ("0", "1"),
    "abl": ("L0H0", "L0H1"),
    "mode": ("zero", "mean", "resample"),
    "prompt": ("abc", "dd"),
    "head": ("L0H0", "L0H1"),
    "metric": ("sources", "first"),
    "click": ("true", "false"),
    "T": ("0", "1.5"),
    "gate": ("0", "0.5"),
}
junk = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["", "..", "../../etc/passwd", "/etc/passwd", "tiny/../other", "tiny\0", "./tiny",
         ".hidden", "%2e%2e", "nan", "1e999", "-0", "01", "L99H0", "L0H0,L0H1", "<img src=x>",
         "\u202etxt", "x" * 5_000, "a\nb", "$x$", "[a](http://b)", "None", "True"]
    ),
)  # fmt: skip
address = st.fixed_dictionaries(
    {},
    optional={
        name: st.lists(st.sampled_from(GOOD[name]) | junk, min_size=1, max_size=3) for name in NAMES
    },
)


@pytest.fixture(scope="module")
def home(whole_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of two runs, with a file beside it that nobody may see."""
    place = tmp_path_factory.mktemp("studio")
    home = place / "home"
    for name in ("tiny", "other"):
        shutil.copytree(whole_run, home / name)
    shutil.copytree(whole_run, place / "secret")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADLAB_HOME", str(home))
        st_app.cache_data.clear()
        st_app.cache_resource.clear()
        opened({"prompt": ["abc"], "abl": ["L0H0"], "mode": ["mean"]})  # imports what it needs
        yield home
        st_app.cache_data.clear()
        st_app.cache_resource.clear()


def opened(parameters: dict[str, list[str]]) -> AppTest:
    """Return the studio as somebody sees it who opens an address."""
    page = AppTest.from_file(str(ENTRY), default_timeout=600)
    for name, values in parameters.items():
        page.query_params[name] = values
    return page.run()


@settings(
    max_examples=12,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(address)
@example({"run": ["../secret"], "abl": ["L0H1"], "ckpt": ["0"]})
@example({"run": ["tiny", "other"], "abl": ["L0H0", "L0H1"], "mode": ["mean"], "prompt": ["aaa"]})
def test_an_address_is_a_state_or_a_message(
    home: Path, only_in: Watch, parameters: dict[str, list[str]]
) -> None:
    with only_in(home, *OWN):
        page = opened(parameters)
    assert not page.exception
    text = "\n".join(element.value for element in page.text)
    assert "could not be drawn" not in text
    assert page.selectbox(key="run").value in GOOD["run"]
    assert page.selectbox(key="ckpt").value in GOOD["ckpt"]
    assert set(page.multiselect(key="abl").value) <= set(GOOD["abl"])
    for name in ("run", "ckpt", "head"):
        value = parameters.get(name, [GOOD[name][0]])[-1]
        assert value in GOOD[name] or "unknown " in text
    assert len(page.get("vega_lite_chart")) >= 2


@settings(max_examples=58)
@given(st.sampled_from(NAMES), st.lists(junk, max_size=4), st.booleans())
def test_what_is_unknown_is_named_in_short_lines(name: str, values: list[str], many: bool) -> None:
    lines = complaints(name, values, GOOD[name], many=many)
    assert all(line.startswith(f"unknown {name} ") for line in lines)
    for line in (*lines, *number_complaints(name, values, HOTTEST)):
        assert line.isascii() and line.isprintable() and len(line) < 400


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk)
def test_a_prompt_is_read_or_explained(home: Path, only_in: Watch, text: str) -> None:
    run = open_run("tiny", home)
    with only_in(home):
        problem = prompt_problem(run, text)
    letters = text != "" and set(text) <= set("abcd") and len(text) <= 3
    assert (problem is None) == (letters or not text)
    assert problem is None or (problem.isprintable() and len(problem) < 1_000)


def test_a_run_that_cannot_be_opened_is_never_a_path(home: Path) -> None:
    for name in ("../secret", "..", "tiny/../../secret", os.sep, "\0"):
        with pytest.raises(ValueError, match=r"^(unknown run|run must be a folder)"):
            open_run(name, home)
