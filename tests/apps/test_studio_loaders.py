"""What the pages show against direct calls of lab and probes, and the keys of the caches."""

import dataclasses

import pytest
import streamlit as st

from apps.studio import loaders
from apps.studio.address import View

pytestmark = pytest.mark.filterwarnings("ignore::streamlit.errors.StreamlitAPIWarning")


@pytest.fixture
def view(studio_home, monkeypatch) -> View:
    monkeypatch.setenv("HEADLAB_HOME", str(studio_home))
    st.cache_data.clear()
    st.cache_resource.clear()
    runs = {run.name: run for run in loaders.all_runs()}
    assert list(runs) == ["raw", "tiny"]
    return View(run=runs["tiny"], step=60)


def test_what_the_report_says_is_what_is_measured(view):
    """So the baseline does not jump when the first head is ablated."""
    reported = loaders.screen(view)
    measured = loaders.measured_screen(view)
    assert measured["accuracy"] == pytest.approx(reported["accuracy"], rel=1e-6)
    assert measured["sentence"].startswith("L0H0 looks like a reversal head")
    assert measured["sequence"] == reported["sequence"]
    assert measured["patterns"] == reported["patterns"]
    assert measured.keys() == reported.keys()


def test_the_maps_of_a_reported_checkpoint_need_no_model(view):
    screen = loaders.screen(view)
    tokens, maps, high = loaders.maps(view, screen)
    assert (tokens, maps, high) == (screen["sequence"]["tokens"], screen["patterns"], 255.0)


def test_another_prompt_is_another_reading(view):
    assert loaders.reading(view, "abcd").expected == ["d", "c", "b", "a"]
    assert loaders.reading(view, "aabb").expected == ["b", "b", "a", "a"]


def test_a_reading_shows_the_ablated_model(view):
    intact = loaders.reading(view, "abcd")
    assert intact.answer == intact.expected
    assert intact.tokens == ["<bos>", "a", "b", "c", "d", "<sep>", "d", "c", "b", "a"]
    assert [sum(row) for row in intact.maps["L0H0"]] == pytest.approx([1.0] * 10)
    blind = loaders.reading(dataclasses.replace(view, ablated=("L0H0", "L0H1")), "abcd")
    assert blind.answer != blind.expected
    assert blind.maps["L0H0"] == intact.maps["L0H0"]  # nothing below it was ablated
    assert blind.maps["L1H0"] != intact.maps["L1H0"]


def test_the_example_is_the_one_that_was_reported_on(view):
    screen = loaders.screen(view)
    text = loaders.example_text(screen, view.run)
    read = loaders.reading(view, text)
    assert read.tokens == screen["sequence"]["tokens"]
    for q, row in enumerate(read.maps["L0H1"]):
        assert [255 * cell for cell in row] == pytest.approx(
            screen["patterns"]["L0H1"][q], abs=0.501
        )


def test_a_prompt_that_the_task_cannot_read_is_explained_in_one_line(view):
    assert loaders.prompt_problem(view.run, "abc") is None
    assert loaders.prompt_problem(view.run, "") is None
    assert loaders.prompt_problem(view.run, "abz!") == "unknown symbols 'z', '!'; choose from a-h"
    assert "must be 1 to 4 symbols" in (loaders.prompt_problem(view.run, "abcde") or "")


def test_a_newer_first_screen_is_refused(view, monkeypatch):
    monkeypatch.setattr(loaders, "SCREEN_VERSION", 0)
    with pytest.raises(ValueError, match=r"must be at most 0, got 2; write it again with `headlab"):
        loaders.screen(view)


def test_a_first_screen_from_before_labels_is_measured_anew(view, monkeypatch):
    reported = loaders.screen(view)
    monkeypatch.setattr(
        loaders, "read_screen", lambda *_: {"schema_version": 1, "step": view.step, "scores": []}
    )
    anew = loaders.screen(view)
    assert anew["scores"][0]["score"] == pytest.approx(reported["scores"][0]["score"], abs=0.02)
    assert [row["label"] for row in anew["labels"]] == [row["label"] for row in reported["labels"]]


def test_a_record_names_everything_that_it_was_measured_on(view):
    ablated = dataclasses.replace(view, ablated=("L0H1",))
    record = loaders.record(ablated, [("Ablated", "ablated", {"loss": 1.0})], {})
    assert record["run"] == "tiny" and record["step"] == 60
    assert record["heads"] == ["L0H1"]
    assert record["mode"] == "zero" and record["gate"] == 0.0
    assert record["checkpoint_sha256"] == view.identity[1]
    assert record["ablated"] == {"loss": 1.0}
