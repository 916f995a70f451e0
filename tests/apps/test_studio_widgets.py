from types import SimpleNamespace

import pytest

from apps.studio import widgets

HEADS = ["L0H0", "L0H1"]


@pytest.fixture
def state(monkeypatch) -> dict:
    state = {"grid_generation": 3, "abl": [], "head": "L0H0"}
    monkeypatch.setattr(widgets, "st", SimpleNamespace(session_state=state))
    return state


def click(state: dict, generation: int, head: str, *, ablate: bool) -> None:
    state[f"grid_{generation}"] = {"selection": {"pick": [{"name": head}]}}
    widgets.grid_clicked(generation, HEADS, ablate)


def test_a_click_ablates_and_asks_for_a_new_chart(state):
    click(state, 3, "L0H1", ablate=True)
    assert state["abl"] == ["L0H1"]
    assert state["grid_generation"] == 4
    click(state, 4, "L0H1", ablate=True)
    assert state["abl"] == []
    assert state["head"] == "L0H0"


def test_a_click_that_is_sent_again_with_the_next_one_is_not_counted_again(state):
    click(state, 3, "L0H1", ablate=True)
    widgets.grid_clicked(3, HEADS, True)
    assert state["abl"] == ["L0H1"]
    assert state["grid_generation"] == 4


def test_a_click_that_inspects_leaves_the_ablation_alone(state):
    click(state, 3, "L0H1", ablate=False)
    assert state["head"] == "L0H1"
    assert state["abl"] == []


def test_an_unknown_head_is_neither_ablated_nor_chosen(state):
    click(state, 3, "L9H9", ablate=True)
    click(state, 4, "L9H9", ablate=False)
    assert (state["abl"], state["head"]) == ([], "L0H0")
