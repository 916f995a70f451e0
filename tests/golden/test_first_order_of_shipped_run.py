"""Two known failures of importance by gradients, reproduced on artifacts/reversal.

Michel et al. 2019 divide by the norm of the layer, and take the loss.
"""

from pathlib import Path

import pytest

from lab.evaluation import evaluate
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.first_order.agreement import first_order_study
from probes.first_order.importance import head_importance

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model() -> HookedGPT:
    return HookedGPT.load(ROOT / "artifacts" / "reversal")


@pytest.fixture(scope="module")
def unseen() -> Batch:
    return get_task("reversal", length=10).sample(100, seed=0, split="test")


def least_important(
    model: HookedGPT, batch: Batch, n: int, **options: str
) -> list[tuple[int, int]]:
    frame = head_importance(model, batch, **options).nsmallest(n, "importance")
    return list(zip(frame["layer"].tolist(), frame["head"].tolist(), strict=True))


def test_raw_order_lets_the_idle_layer_go_and_the_normalised_one_does_not(
    model: HookedGPT, unseen: Batch
) -> None:
    """Four of eight heads gone: nothing lost by the raw order, most sequences by the other."""
    raw = least_important(model, unseen, 4)
    assert sorted(raw) == [(1, head) for head in range(4)]
    normalised = least_important(model, unseen, 4, normalise="layer")
    assert sorted(normalised) == [(0, 0), (0, 2), (0, 3), (1, 0)]
    exact = [
        evaluate(model, unseen, gates=HeadGates.ablate(heads, like=model)).exact_match
        for heads in (raw, normalised)
    ]
    assert exact == [1.0, pytest.approx(0.4, abs=0.05)]


def test_the_loss_of_a_solved_task_has_no_gradient(model: HookedGPT, unseen: Batch) -> None:
    """Importance in millionths of a nat, where all heads of layer 0 together are worth 7 nats."""
    of_loss, of_margin = (head_importance(model, unseen, metric=m) for m in ("loss", "margin"))
    assert of_loss["importance"].max() < 1e-5
    assert of_margin["importance"].max() > 0.05
    gates = HeadGates.ablate([(0, head) for head in range(4)], like=model)
    assert evaluate(model, unseen, gates=gates).loss > 5.0


def test_ranks_agree_where_sizes_and_signs_do_not(model: HookedGPT, unseen: Batch) -> None:
    study = first_order_study(model, unseen, metric="margin")
    working = study.heads[study.heads["layer"] == 0]
    assert (working["delta"].abs() / working["importance"]).min() > 6
    assert working["estimate"].max() > 0 > working["delta"].max()
    rows = study.agreement.set_index("estimator")
    assert rows["shared"]["importance by example"] == rows["top"]["importance by example"] == 4
    assert rows["ci_low"]["importance by example"] > 0.5
    assert rows["spearman"]["importance by example / layer"] < 0.5
    assert rows["ci_high"]["attribution patching"] < 0.5
