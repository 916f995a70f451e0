"""What artifacts/reversal shows of redundancy: layer 0 carries it all together, no head alone."""

from pathlib import Path

import numpy as np
import pytest

from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.ablation.redundancy import RedundancyPlan, head_redundancy
from probes.ablation.shapley import shapley_values

ROOT = Path(__file__).resolve().parents[2]
LAYERS = [[(layer, head) for head in range(4)] for layer in range(2)]


@pytest.fixture(scope="module")
def model() -> HookedGPT:
    return HookedGPT.load(ROOT / "artifacts" / "reversal")


@pytest.fixture(scope="module")
def unseen() -> Batch:
    return get_task("reversal", length=10).sample(100, seed=0, split="test")


def test_heads_of_layer_0_are_redundant_and_those_of_layer_1_useless(
    model: HookedGPT, unseen: Batch
) -> None:
    """Every head can go alone; those that reverse cannot go together, the others can."""
    frame = head_redundancy(
        model, unseen, plan=RedundancyPlan(metric="exact_match", every_set=True)
    )
    assert frame["group"].tolist() == ["sources"] * 5 + ["broad"] * 5
    sources, broad = frame[:5], frame[5:]
    assert sources["verdict"].tolist() == ["needed", *["redundant"] * 4]
    assert sources["delta"].tolist() == [-1.0, 0.0, 0.0, 0.0, 0.0]
    assert sources["ci_high"].iloc[0] == -1.0
    assert set(broad["verdict"]) == {"useless"}
    assert set(broad["delta"]) == {0.0}
    # All heads of layer 0 stand in one label: the only others, of layer 1, cost nothing.
    assert sources["control"].iloc[0] == 0.0
    assert sources["control_in_layers"].iloc[0] == 0.0


def test_joint_effect_is_larger_than_the_sum_of_single_ones(
    model: HookedGPT, unseen: Batch
) -> None:
    groups = {"layer 0": LAYERS[0], "layer 1": LAYERS[1]}
    frame = head_redundancy(model, unseen, groups, plan=RedundancyPlan(metric="loss"))
    joint = frame.iloc[0]
    assert joint["delta"] == pytest.approx(7.46, abs=0.05)
    assert joint["ci_low"] > 1000 * joint["singles"] > 0.0
    singles = frame.iloc[1:5]
    assert (singles["ci_low"] > 0.0).all() and (singles["ci_high"] < 0.001).all()
    assert (singles["ci_low"] < singles["delta"]).all()
    assert (singles["delta"] < singles["ci_high"]).all()
    assert abs(frame["delta"].iloc[5]) < 1e-4  # all of layer 1


def test_shapley_values_share_the_joint_effect_out(model: HookedGPT, unseen: Batch) -> None:
    heads = LAYERS[0] + LAYERS[1]
    frame = shapley_values(model, unseen[:40], heads, metrics=["loss", "exact_match"])
    assert frame["n_runs"].unique().tolist() == [256]
    for _, rows in frame.groupby("metric"):
        assert rows["value"].sum() == pytest.approx(rows["joint"].iloc[0], abs=1e-6)
    loss, exact = frame[:8], frame[8:]
    np.testing.assert_allclose(loss["value"][:4], [1.78, 2.03, 1.67, 1.99], atol=0.05)
    assert loss["value"][4:].abs().max() < 0.01
    assert exact["joint"].iloc[0] == -1.0
    assert (exact["value"][:4] < -0.15).all() and (exact["value"][4:].abs() < 0.01).all()
