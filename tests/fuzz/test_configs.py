"""Plain data of any shape as a config or as gates: read back to the same, or one ValueError."""

import json
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.config import LARGEST_SIZE, ModelConfig, SampleConfig, TrainConfig
from lab.gates import HeadGates
from lab.weights import expected_shapes

DEEP: list[Any] = []
for _ in range(2_000):
    DEEP = [DEEP]
UNPRINTABLE = {"digits": 10**5000, "depth": DEEP}  # hypothesis could not show them either

numbers = st.one_of(
    st.integers(-2, 20),
    st.sampled_from([10**9, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, -(10**400)]),
    st.floats(),
    st.sampled_from([1e-320, 1e308, -0.0, 1.0, 2.0]),
)
words = st.one_of(st.text(max_size=8), st.sampled_from(["", "rotary", "\ud800", "x" * 9_999, "\n"]))
odd = st.one_of(
    st.sampled_from([None, True, False, b"2", {1, 2}, 1j, Fraction(1, 2), object(), int]),
    st.sampled_from(sorted(UNPRINTABLE)).map(lambda name: UNPRINTABLE[name]),
)
anything = st.recursive(
    numbers | words | odd,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(words, inner, max_size=3)
    ),
    max_leaves=6,
)

MODEL = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_vocab": 6, "n_ctx": 8}
MODEL_KEYS = sorted(ModelConfig.__dataclass_fields__)
heads = st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=3)
model_changes = st.dictionaries(st.sampled_from(MODEL_KEYS) | words, anything | heads, max_size=3)
models = st.one_of(
    model_changes.map(lambda changes: MODEL | changes),
    st.sampled_from(MODEL_KEYS).map(lambda key: {k: v for k, v in MODEL.items() if k != key}),
    anything,
)

TRAIN = {"task": "reversal", "model": MODEL}
TRAIN_KEYS = sorted(TrainConfig.__dataclass_fields__)
trains = st.one_of(
    st.dictionaries(st.sampled_from(TRAIN_KEYS) | words, anything, max_size=3).map(
        lambda changes: TRAIN | changes
    ),
    models.map(lambda model: TRAIN | {"model": model}),
    st.lists(numbers | words, max_size=3).map(lambda betas: TRAIN | {"betas": betas}),
    anything,
)

pairs = st.lists(st.lists(st.integers(-1, 3) | anything, max_size=3) | anything, max_size=3)
gates = st.one_of(
    st.fixed_dictionaries(
        {"heads": pairs},
        optional={
            "value": numbers | anything,
            "positions": st.lists(numbers, max_size=3) | anything,
            "fill": words | anything,
            "fill_sha256": words | anything,
        },
    ),
    st.dictionaries(words, anything, max_size=2),
    anything,
)


def read(build: Callable[[Any], Any], data: Any) -> Any:
    """Return what the data describe; None after one short ASCII line that refuses them."""
    try:
        return build(data)
    except ValueError as error:
        line = str(error)
        assert line.isascii() and line.isprintable() and 10 < len(line) < 1_000
        return None


@settings(max_examples=150)
@given(models)
@example(MODEL | {"eps": 10**400})
@example(MODEL | {"n_heads": 10**9, "d_head": 4, "kept_heads": [[0], [1]]})
@example(MODEL | {"kept_heads": [[False, True], []]})
@example(MODEL | {"d_head": 10**30, "kept_heads": [[], []]})
@example(MODEL | {"n_ctx": 10**7, "positional_embedding_type": "sinusoidal"})
def test_a_model_is_read_back_or_refused(data: Any) -> None:
    config = read(ModelConfig.from_dict, data)
    if config is None:
        return
    plain = config.to_dict()
    assert ModelConfig.from_dict(plain) == config
    assert ModelConfig.from_dict(json.loads(json.dumps(plain, allow_nan=False))) == config
    # Whatever it claims, describing it costs nothing, and no size overflows a tensor.
    assert 0 < config.n_parameters < 2**120
    for _, (name, shape) in zip(range(9), expected_shapes(config), strict=False):
        assert name and all(0 <= size <= 4 * LARGEST_SIZE for size in shape)


@settings(max_examples=150)
@given(trains)
@example(TRAIN | {"grad_clip": "1"})
@example(TRAIN | {"betas": 0.9})
@example(TRAIN | {"betas": {"a": 1, "b": 2}})
@example(TRAIN | {"model": 5})
@example(TRAIN | {"task": ["reversal"]})
@example(TRAIN | {"device": None})
@example(TRAIN | {"learning_rate": 10**400})
@example(TRAIN | {"steps": 10**400})
def test_a_training_is_read_back_or_refused(data: Any) -> None:
    config = read(TrainConfig.from_dict, data)
    if config is not None:
        plain = config.to_dict()
        assert TrainConfig.from_dict(plain) == config
        assert TrainConfig.from_dict(json.loads(json.dumps(plain, allow_nan=False))) == config
        assert isinstance(config.model, ModelConfig)


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(["temperature", "top_k", "top_p", "seed"]), numbers | anything, max_size=3
    )
)
def test_sampling_is_described_or_refused(values: dict[str, Any]) -> None:
    read(lambda given_values: SampleConfig(**given_values), values)


@settings(max_examples=110)
@given(gates)
@example({"heads": 5})
@example({"heads": [3]})
@example({"heads": [[0, 10**30]], "positions": 3})
@example({"heads": [[0, 0]], "fill": ["mean"]})
def test_gates_are_read_back_or_refused(data: Any) -> None:
    config = read(HeadGates.from_dict, data)
    if config is None:
        return
    assert HeadGates.from_dict(config.to_dict()) == config
    assert HeadGates.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    model = SimpleNamespace(config=ModelConfig.from_dict(MODEL))
    tensors = read(lambda _: config.tensors(model), None)
    if tensors is not None:
        assert tensors.g.shape[::3] == (2, 2)
        assert int((tensors.g[:, 0, 0] != 1).sum()) <= len(config.heads)


@pytest.mark.parametrize("name", UNPRINTABLE)
@pytest.mark.parametrize("key", ["n_layers", "act_fn", "eps", "kept_heads", "tie_word_embeddings"])
def test_a_value_that_cannot_be_shown_is_still_one_line(name: str, key: str) -> None:
    assert read(ModelConfig.from_dict, MODEL | {key: UNPRINTABLE[name]}) is None


@pytest.mark.parametrize("kind", ["standard", "sinusoidal", "rotary"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kept", [None, ((1,), ())])
def test_the_number_of_parameters_is_the_models(kind: str, tied: bool, kept: Any) -> None:
    from lab.hooked_gpt import HookedGPT

    shape = {"positional_embedding_type": kind, "tie_word_embeddings": tied, "kept_heads": kept}
    config = ModelConfig(**MODEL, **shape, d_head=6, d_mlp=5)
    assert config.n_parameters == sum(p.numel() for p in HookedGPT(config).parameters())
