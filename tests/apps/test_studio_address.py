import itertools
import re
from pathlib import Path

import pytest

from apps.studio.address import (
    KEYS,
    View,
    all_heads,
    all_steps,
    click_complaints,
    clicked_heads,
    complaints,
    key_complaints,
    place_complaints,
    quoted,
    toggle,
    weights_name,
)
from lab.config import ModelConfig, TrainConfig
from lab.manifest import FileEntry
from lab.run_folders import Run

HEADS = ["L0H0", "L0H1", "L1H0", "L1H1"]


def run_of(model: ModelConfig) -> Run:
    files = {
        "config.json": FileEntry(sha256="c" * 64, bytes=1),
        weights_name(0): FileEntry(sha256="0" * 64, bytes=1),
    }
    train = TrainConfig(task="reversal", model=model)
    return Run(path=Path("nowhere"), name="r", config=train, info={}, files=files)


def model_config(kept: tuple[tuple[int, ...], ...] | None = None) -> ModelConfig:
    return ModelConfig(n_layers=2, n_heads=2, d_model=8, d_vocab=28, n_ctx=32, kept_heads=kept)


def test_a_click_changes_one_head_and_a_second_click_undoes_it():
    for size in range(5):
        for before in itertools.combinations(HEADS, size):
            for head in HEADS:
                after = toggle(before, [head], HEADS)
                assert set(after) == set(before) ^ {head}
                assert toggle(after, [head], HEADS) == list(before)


def test_ablated_heads_keep_the_order_of_the_model_however_they_were_clicked():
    assert toggle(toggle(["L1H1"], ["L0H1"], HEADS), ["L0H0"], HEADS) == ["L0H0", "L0H1", "L1H1"]


def test_a_click_that_selects_nothing_changes_nothing():
    assert toggle(["L0H1"], [], HEADS) == ["L0H1"]


@pytest.mark.parametrize(
    "event",
    [
        None,
        "L0H0",
        {},
        {"selection": None},
        {"selection": {}},
        {"selection": {"pick": {}}},
        {"selection": {"pick": "L0H0"}},
        {"selection": {"pick": [{"name": "L9H9"}, {"name": None}, {}, "L0H0", {"name": ["L0H0"]}]}},
        {"selection": {"pick": [{"head": "L0H0"}]}},
    ],
)
def test_what_a_browser_should_not_send_is_no_head(event):
    assert clicked_heads(event, HEADS) == []


def test_a_chart_says_which_head_was_clicked():
    assert clicked_heads({"selection": {"pick": [{"name": "L1H0"}]}}, HEADS) == ["L1H0"]


def test_unknown_values_are_named_once_with_a_suggestion():
    assert complaints("head", ["L0H0", "L9H0", "L9H0"], HEADS, many=True) == [
        "unknown head 'L9H0'; choose from L0H0, L0H1, L1H0, L1H1 (did you mean 'L1H0'?)"
    ]
    assert complaints("head", HEADS, HEADS, many=True) == []


def test_of_a_parameter_with_one_value_the_last_counts_as_in_the_widgets():
    assert complaints("run", ["junk", "a"], ["a", "b"]) == []
    assert len(complaints("run", ["a", "junk"], ["a", "b"])) == 1


def test_a_message_repeats_little_of_a_long_value():
    assert quoted("x" * 61) == "x" * 57 + "..."
    assert quoted("x" * 60) == "x" * 60
    assert "\n" not in complaints("run", ["a\nb\x1b"], ["a"])[0]


def test_a_pruned_model_offers_the_heads_that_it_still_has():
    assert all_heads(run_of(model_config())) == HEADS
    assert all_heads(run_of(model_config(kept=((1,), ())))) == ["L0H1"]


def test_steps_are_those_that_the_manifest_vouches_for(tmp_path):
    for step in (0, 20, 40):
        (tmp_path / weights_name(step)).parent.mkdir(parents=True)
    run = Run(
        path=tmp_path,
        name="tiny",
        config=TrainConfig(task="reversal", model=model_config()),
        info={},
        files={weights_name(0): FileEntry(sha256="", bytes=0), weights_name(40): FileEntry("", 0)},
    )
    assert all_steps(run) == [40, 0]


def test_two_runs_that_share_weights_are_told_apart():
    run = run_of(model_config())
    other = Run(
        path=run.path,
        name="other",
        config=run.config,
        info={},
        files={**run.files, "config.json": FileEntry(sha256="d" * 64, bytes=1)},
    )
    assert View(run=run, step=0).identity != View(run=other, step=0).identity


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (
            {"step": ["abc"]},
            "unknown key 'step'; choose from T, abl, .* \\(did you mean 'ckpt'\\?\\)",
        ),
        ({"heads": ["foo"]}, "unknown key 'heads'; .* \\(did you mean 'abl'\\?\\)"),
        ({"Probe": ["bar"]}, "unknown key 'Probe'; .* \\(did you mean 'metric'\\?\\)"),
        ({"promt": ["ab"]}, "unknown key 'promt'; .* \\(did you mean 'prompt'\\?\\)"),
        ({"x" * 999: [""]}, "unknown key 'x{57}\\.\\.\\.'; choose from T, .*, run"),
        ({"run": ["a", "b"]}, "key 'run' must be given once, got 'a', 'b'; the last one counts"),
        (
            {"mode": ["mean", "zero"]},
            "key 'mode' must be given once, got 'mean', 'zero'; the first one counts",
        ),
        ({"run": ["a", "a"]}, "key 'run' must be given once, got 'a', 'a'; the last one counts"),
    ],
)
def test_a_key_that_says_nothing_here_is_named(asked, line):
    (got,) = key_complaints(asked)
    assert re.fullmatch(line, got)
    assert key_complaints({key: ["1"] for key in KEYS} | {"abl": ["L0H0", "L0H1"]}) == []


def test_a_click_and_a_place_that_are_none_are_named():
    assert click_complaints(["maybe"]) == [
        "unknown value of 'click' 'maybe'; choose from false, true"
    ]
    assert click_complaints(["true"]) == click_complaints([]) == place_complaints([], 3) == []
    for wrong in ("0", "4", "x", "1.0"):
        assert place_complaints([wrong], 3) == [
            f"place must be a whole number from 1 to 3, got '{wrong}'; 1 is used"
        ]
    assert place_complaints(["1"], 3) == place_complaints(["3"], 3) == []
