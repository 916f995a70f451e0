"""How small artifacts/reversal can get: what greedy, random and normalised orders leave of it."""

from pathlib import Path

import pandas as pd
import pytest

from lab.hooked_gpt import HookedGPT
from lab.tasks.registry import get_task
from probes.pruning.curves import pruning_curve, random_band, removable
from probes.pruning.plan import PruningPlan

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def curve() -> pd.DataFrame:
    """Found on 40 sequences, reported on 200 others."""
    model = HookedGPT.load(ROOT / "artifacts" / "reversal")
    task = get_task("reversal", length=10)
    return pruning_curve(
        model,
        task.sample(40, seed=0, split="reference"),
        ["greedy", "one-shot", "oracle"],
        held_out=task.sample(200, seed=0, split="test"),
        plan=PruningPlan(metrics=["exact_match", "margin"]),
    )


def test_six_of_eight_heads_can_go(curve: pd.DataFrame) -> None:
    assert curve.attrs["chosen_by"] == "margin"  # the loss of a solved model says nothing
    spared = removable(curve, within=0.0, metric="exact_match").set_index(["order", "normalise"])
    assert spared.loc[("greedy", ""), "removable"] == 6
    assert spared.loc[("oracle", ""), "removable"] == 6
    exact = curve[(curve["order"] == "greedy") & (curve["metric"] == "exact_match")]
    assert exact["held_out"].tolist()[:7] == [1.0] * 7
    assert exact["held_out"].tolist()[7] < 0.5
    # Layer 1, which is idle, goes first.
    assert {label[:2] for label in exact["removed"].tolist()[1:5]} == {"L1"}


def test_random_orders_stand_beside_it(curve: pd.DataFrame) -> None:
    band = random_band(curve)
    exact = band[band["metric"] == "exact_match"].set_index("n_removed")
    assert exact["n_orders"].tolist() == [20] * 9
    assert exact.loc[5, "median"] < 0.8 and exact.loc[4, "low"] < 0.2
    spared = removable(curve, within=0.0, metric="exact_match")
    drawn = spared[spared["order"] == "random"].iloc[0]
    assert drawn["low"] <= 2 and drawn["removable"] <= 4


def test_normalising_by_layer_removes_what_works(curve: pd.DataFrame) -> None:
    """Michel et al.'s l2 by layer makes the idle layer look as important as the working one."""
    once = curve[(curve["order"] == "one-shot") & (curve["metric"] == "margin")]
    plain, by_layer = (
        once[once["normalise"] == name].set_index("n_removed") for name in ("none", "layer")
    )
    assert {label[:2] for label in plain["removed"].tolist()[1:5]} == {"L1"}
    assert by_layer.loc[1, "removed"].startswith("L0")
    assert (by_layer["held_out"] <= plain["held_out"] + 1e-6).all()
    assert by_layer.loc[4, "held_out"] < plain.loc[4, "held_out"] - 1.0
    assert plain.loc[4, "delta_ci_low"] > -0.1
