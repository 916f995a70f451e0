"""Configs: what they refuse, and that they survive JSON."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import ModelConfig, SampleConfig, TrainConfig

pytestmark = pytest.mark.usefixtures("as_a_user")

SIZES = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_vocab": 9, "n_ctx": 8}


def test_derived_widths() -> None:
    config = ModelConfig(**SIZES)
    assert (config.head_width, config.mlp_width) == (4, 64)
    wider = dataclasses.replace(config, d_model=32)
    assert (wider.head_width, wider.mlp_width) == (8, 128)
    given_widths = ModelConfig(**SIZES, d_head=5, d_mlp=7)
    assert (given_widths.head_width, given_widths.mlp_width) == (5, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": 0}, "n_layers must be a whole number of at least 1, got 0"),
        ({"d_vocab": True}, "d_vocab must be a whole number of at least 1, got True"),
        ({"n_ctx": 8.0}, "n_ctx must be a whole number of at least 1, got 8.0"),
        ({"d_model": 18}, "d_model must be a multiple of n_heads, got 18 and 4; change one"),
        ({"act_fn": "gelo"}, r"unknown act_fn 'gelo'; choose from .* \(did you mean 'gelu'\?\)"),
        ({"positional_embedding_type": "alibi"}, "unknown positional_embedding_type 'alibi'"),
        ({"positional_embedding_type": "rotary", "d_head": 5}, "d_head must be even for rotary"),
        (
            {"positional_embedding_type": "rotary", "d_model": 12},
            "d_model / n_heads must be even for rotary positions, got 12 / 4 = 3; change one",
        ),
        (
            {"positional_embedding_type": "sinusoidal", "d_model": 5, "d_head": 4},
            "d_model must be even",
        ),
        ({"eps": math.nan}, "eps must be a number of at least 0, got nan"),
        ({"initializer_range": -0.1}, "initializer_range must be a number of at least 0, got -0.1"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
    ],
)
def test_model_refusals(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{**SIZES, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 0}, "length must be a whole number of at least 1, got 0"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"learning_rate": math.inf}, "learning_rate must be a number of at least 0, got inf"),
        ({"final_lr_share": 1.5}, "final_lr_share must be a number from 0 to 1, got 1.5"),
        ({"grad_clip": 0.0}, "grad_clip must be more than 0, got 0.0"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers from 0 to below 1"),
        ({"precision": "fp16"}, "unknown precision 'fp16'; choose from auto, bf16, fp32"),
        ({"batch_size": 10, "accumulate": 4}, "batch_size must be a multiple of accumulate"),
    ],
)
def test_training_refusals(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(task="reversal", model=ModelConfig(**SIZES), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1.0}, "temperature must be a number from 0 to 10000, got -1.0"),
        ({"temperature": 1e308}, r"temperature must be a number from 0 to 10000, got 1e\+308"),
        ({"temperature": math.nan}, "temperature must be a number from 0 to 10000, got nan"),
        ({"seed": 2**63}, r"seed must be below 2\*\*63, got 9223372036854775808"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be more than 0, got 0.0"),
        ({"top_p": 1.5}, "top_p must be a number from 0 to 1, got 1.5"),
    ],
)
def test_sampling_refusals(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SampleConfig(**changes)


@given(
    layers=st.integers(1, 9),
    heads=st.integers(1, 9),
    width=st.integers(1, 9),
    seed=st.integers(0, 2**31),
    eps=st.floats(0, 1),
)
def test_json_round_trip(layers: int, heads: int, width: int, seed: int, eps: float) -> None:
    model = ModelConfig(
        n_layers=layers,
        n_heads=heads,
        d_model=heads * width,
        d_vocab=3,
        n_ctx=4,
        seed=seed,
        eps=eps,
    )
    train = TrainConfig(task="copy", model=model, betas=(0.5, 0.25), seed=seed)
    assert TrainConfig.from_dict(json.loads(json.dumps(train.to_dict()))) == train


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**SIZES, "n_head": 4}, r"unknown ModelConfig key 'n_head'.*did you mean 'n_heads'"),
        ({"n_layers": 2}, "ModelConfig must have the key 'n_heads', got n_layers"),
        ([1, 2], "ModelConfig must be a JSON object, got list"),
    ],
)
def test_strict_reading(data: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(data)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (((0,),), "kept_heads must be a list of 2 lists, one a layer"),
        (((0, 4), ()), r"kept_heads\[0\] must be different head ids from 0 to 3, in order"),
        (((), (1, 0)), r"kept_heads\[1\] must be different head ids"),
        (((), (1, 1)), r"kept_heads\[1\] must be different head ids"),
        (("01", ()), r"kept_heads\[0\] must be different head ids"),
    ],
)
def test_kept_heads_refusals(kept: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**SIZES, kept_heads=kept)
