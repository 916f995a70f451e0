"""Presets are whole configurations that train what they say."""

import dataclasses
from functools import cache

import pytest

from lab.config import TrainConfig
from lab.presets import PRESETS, get_preset
from lab.training import StepRecord, task_of, train


@pytest.mark.parametrize("name", [entry.name for entry in PRESETS])
def test_a_preset_is_a_whole_config_of_its_task(name):
    config = get_preset(name, seed=3)
    assert (config.task, config.seed, config.model.seed) == (name, 3, 3)
    assert TrainConfig.from_dict(config.to_dict()) == config
    task_of(config)
    assert next(train(dataclasses.replace(config, batch_size=2))).step == 1


def test_the_reversal_preset_is_the_demo():
    config = get_preset("reversal")
    model = config.model
    assert (config.length, config.n_symbols, model.n_layers, model.n_heads) == (10, 26, 2, 4)
    assert (model.d_model, model.initializer_range, model.n_ctx) == (64, 0.02, 32)
    # Step 0 beside the eight of training; with weights only they stay under 5 MB.
    assert config.steps // config.checkpoint_every == 8


def test_names_are_checked_and_unique():
    assert len({entry.name for entry in PRESETS}) == len(PRESETS)
    assert all(entry.summary for entry in PRESETS)
    with pytest.raises(ValueError, match=r"^unknown preset 'revers'; .*mean 'reversal'\?"):
        get_preset("revers")


@cache
def trained(name: str, seed: int) -> StepRecord:
    """Return the last record of a preset's training."""
    *_, record = train(get_preset(name, seed=seed))
    return record


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in PRESETS])
def test_a_preset_reaches_exact_match(name):
    record = trained(name, 0)
    assert record.evaluation is not None
    # Letters that stand twice keep sorting from being perfect on every word.
    assert record.evaluation.exact_match >= (0.98 if name == "sorting" else 1.0)
    assert record.evaluation.n_sequences == 2000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_on_every_seed_some_head_reads_each_answer_from_its_source(seed):
    # Straight from the attention matrices, without the probes: the row of answer t is n + t, its
    # source n - t + 1.
    record = trained("reversal", seed)
    tokens = task_of(get_preset("reversal")).sample(200, seed=seed, split="test").tokens
    _, cache = record.model.run_with_cache(tokens)
    for t in range(1, 11):
        best = max(
            cache[f"blocks.{layer}.attn.hook_pattern"][:, head, 10 + t, 11 - t].mean().item()
            for layer in range(2)
            for head in range(4)
        )
        assert best >= 0.9
