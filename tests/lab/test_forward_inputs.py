"""What a forward pass is handed besides good tokens: each works, or is refused in one line."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.evaluation import evaluate
from lab.gates import GateTensors, HeadGates
from lab.hooked_gpt import HookedGPT
from lab.kv_cache import KeyValueCache
from lab.tasks.base import Batch


def small(**changes: object) -> HookedGPT:
    """A model of two layers whose weights matter."""
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_vocab": 11, "n_ctx": 12}
    config = ModelConfig(**{**sizes, "initializer_range": 0.25, "seed": 3, **changes})
    return HookedGPT(config).eval()


def ids(batch: int = 3, n: int = 8) -> Tensor:
    """Draw ids without touching the global generator."""
    return torch.randint(0, 11, (batch, n), generator=torch.Generator().manual_seed(5))


def swapped(model: HookedGPT) -> HookedGPT:
    """Exchange the two blocks."""
    model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]
    return model


def copied(model: HookedGPT) -> HookedGPT:
    """Put a copy of the first block in the place of the second."""
    model.blocks[1] = copy.deepcopy(model.blocks[0])
    return model


def same_weights(model: HookedGPT) -> HookedGPT:
    """A model that was built with the blocks where they now stand."""
    fresh = small()
    fresh.load_state_dict(model.state_dict())
    return fresh


@pytest.mark.parametrize("move", [swapped, copied])
@torch.no_grad()
def test_a_block_works_in_whatever_layer_it_stands(move: Callable[[HookedGPT], HookedGPT]) -> None:
    model = move(small())
    fresh = same_weights(model)
    gates = HeadGates.ablate([(1, 2)], like=model)
    whole = model(ids(), gates=gates)
    assert torch.equal(whole, fresh(ids(), gates=gates))
    assert not torch.equal(whole, model(ids()))

    def zero(z: Tensor, hook: object) -> Tensor:
        z[:, :, 2] = 0
        return z

    hooks = [("blocks.1.attn.hook_z", zero)]
    torch.testing.assert_close(model.run_with_hooks(ids(), fwd_hooks=hooks), whole)
    seen: list[int] = []
    model(ids(), return_type=None, observe=lambda layer, _: seen.append(layer))
    assert seen == [0, 1]
    cache = KeyValueCache(2)
    parts = [model(part, kv_cache=cache) for part in ids().split([5, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), fresh(ids()))
    assert torch.equal(model.generate(ids(), 4), fresh.generate(ids(), 4))


@torch.no_grad()
def test_one_row_of_a_mask_stands_for_all_sequences() -> None:
    model, row = small(), torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    each = row.expand(3, -1)
    for return_type in ("logits", "loss"):
        whole = model(ids(), return_type, attention_mask=each.bool())
        assert torch.equal(model(ids(), return_type, attention_mask=row), whole)
    assert torch.equal(
        model.generate(ids(), 3, attention_mask=row), model.generate(ids(), 3, attention_mask=each)
    )


@torch.no_grad()
def test_a_loss_through_a_cache_counts_the_new_tokens() -> None:
    model, mask = small(), torch.ones(3, 8, dtype=torch.bool)
    mask[1, :2] = False
    whole = model(ids(), "loss", True, attention_mask=mask)
    cache = KeyValueCache(2)
    parts = [
        model(some, "loss", True, attention_mask=real, kv_cache=cache)
        for some, real in zip(ids().split(4, dim=1), mask.split(4, dim=1), strict=True)
    ]
    torch.testing.assert_close(parts[0], whole[:, :3])
    torch.testing.assert_close(parts[1], whole[:, 4:])


def test_int32_ids_are_ids() -> None:
    model = small()
    short = ids().int()
    assert torch.equal(model(short, "loss"), model(ids(), "loss"))
    assert torch.equal(model.generate(short, 3), model.generate(ids(), 3))
    residual = model(short, stop_at_layer=1)
    loss = model(residual, "loss", tokens=short, start_at_layer=1)
    assert torch.equal(loss, model(ids(), "loss"))


@pytest.mark.parametrize("act_fn", ["gelu_new", "solu_ln"])
def test_a_model_can_be_pickled(act_fn: str) -> None:
    model = small(act_fn=act_fn)
    assert torch.equal(pickle.loads(pickle.dumps(model))(ids()), model(ids()))


@pytest.mark.usefixtures("as_a_user")
def test_a_model_can_be_traced() -> None:
    model = small(n_key_value_heads=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced: Any = torch.jit.trace(model, ids())
    torch.testing.assert_close(traced(ids()), model(ids()))


@pytest.mark.parametrize(("start", "stop"), [(-2, 2), (0, -1), (-1, None), (2, None)])
@torch.no_grad()
def test_layers_count_as_in_a_slice(start: int, stop: int | None) -> None:
    model, residual = small(), torch.randn(3, 8, 16, generator=torch.Generator().manual_seed(1))
    expected = residual
    for layer in range(2)[start:stop]:
        expected = model(expected, start_at_layer=layer, stop_at_layer=layer + 1)
    if stop is None:
        expected = model(expected, start_at_layer=2)
    assert torch.equal(model(residual, start_at_layer=start, stop_at_layer=stop), expected)


def gates_of(*g: int, fill: tuple[int, ...] | None = None) -> dict[str, GateTensors]:
    """GateTensors of these shapes, as a keyword."""
    return {"gates": GateTensors(g=torch.ones(g), fill=None if fill is None else torch.zeros(fill))}


STREAM = torch.zeros(1, 8, 16)
REFUSED = [
    (
        {"attention_mask": torch.ones(3, 8)},
        "attention_mask must be a tensor of booleans .* float32",
    ),
    ({"attention_mask": [[1] * 8] * 3}, "attention_mask must be a tensor of booleans"),
    ({"attention_mask": torch.full((3, 8), 2)}, "attention_mask must be 1 at .* got 2 to 2"),
    ({"attention_mask": torch.ones(2, 8).bool()}, r"attention_mask must be of shape \(3, 8\)"),
    ({"attention_mask": torch.ones(8).bool()}, r"attention_mask must be of shape \(3, 8\)"),
    (
        {"attention_mask": torch.ones(3, 9).bool(), "kv_cache": KeyValueCache(2)},
        r"attention_mask must be of shape \(3, 8\), got \(3, 9\)",
    ),
    ({"kv_cache": KeyValueCache(3)}, r"kv_cache must have as many layers .* 2, got 3"),
    (gates_of(2, 1, 1, 8), r"g of the gates must be .* \[2, 1 or 3, 1 or pos, 4\] .* 8\]"),
    (gates_of(5, 1, 1, 4), r"g of the gates must be .* got \[5, 1, 1, 4\]"),
    (gates_of(2, 2, 1, 4), r"g of the gates must be .* got \[2, 2, 1, 4\]"),
    (gates_of(2, 1, 1, 4, fill=(2, 1, 1, 4, 3)), r"fill of the gates must be .* 4, 4\] .* 3\]"),
    ({"gates": torch.ones(2, 1, 1, 4)}, "gates must be HeadGates or GateTensors, got Tensor"),
    ({"gates": [(0, 1)]}, "gates must be HeadGates or GateTensors, got list"),
    ({"stop_at_layer": 99}, "stop_at_layer must be a whole number from -2 to n_layers = 2"),
    ({"stop_at_layer": True}, "stop_at_layer must be"),
    ({"input": STREAM, "start_at_layer": -5}, "start_at_layer must be .* got -5"),
    (
        {"input": torch.zeros(1, 13, 16), "start_at_layer": 1},
        r"input with start_at_layer must be .* n_ctx = 12 positions, got .* \[1, 13, 16\]",
    ),
    ({"input": ids(), "start_at_layer": 1}, "input with start_at_layer must be a residual"),
    ({"input": STREAM, "start_at_layer": 1, "return_type": "loss"}, "needs tokens="),
    (
        {"input": STREAM, "start_at_layer": 1, "return_type": "loss", "tokens": ids()},
        r"tokens must be of shape \[1, 8\]",
    ),
    *(
        ({"input": ids().to(dtype)}, f"token ids must be int64 or int32 .* got {name} of shape")
        for dtype, name in (
            (torch.float32, "float32"),
            (torch.bool, "bool"),
            (torch.int16, "int16"),
            (torch.uint8, "uint8"),
        )
    ),
    ({"input": torch.tensor(3)}, r"token ids must be .* got int64 of shape \[\]"),
    ({"input": ids().unsqueeze(0)}, r"token ids must be .* got int64 of shape \[1, 3, 8\]"),
    ({"input": ids(3, 1), "return_type": "loss"}, "a loss needs .* at least 2 tokens"),
    ({"input": ids(0), "return_type": "both"}, r"a loss needs at least 1 .* \[0, 8\]"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
@pytest.mark.usefixtures("as_a_user")
def test_refusals(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^.*{message}") as error:
        small()(**{"input": ids(), **given})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        ({"attention_dir": "bidirectional"}, {"kv_cache": KeyValueCache(2)}, "causal model"),
        ({"d_vocab_out": 5}, {"return_type": "loss"}, "d_vocab_out must be at least d_vocab = 11"),
    ],
)
def test_refusals_of_a_kind_of_model(
    changes: dict[str, object], given: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)(ids(), **given)


def test_waves_are_exact_in_whatever_type_the_model_was_before() -> None:
    model = small(positional_embedding_type="sinusoidal")
    waves = model.W_pos.clone()
    assert torch.equal(model.bfloat16().W_pos, waves.bfloat16())
    assert torch.equal(model.float().W_pos, waves)
    assert (model.double().W_pos - waves).abs().max() > 1e-9
    assert "pos_embed.W_pos" not in model.state_dict()
    copied = pickle.loads(pickle.dumps(model))
    assert torch.equal(copied(ids()), model(ids()))


@torch.no_grad()
def test_a_tied_unembedding_follows_its_embedding() -> None:
    model, other = small(tie_word_embeddings=True), small(tie_word_embeddings=True, seed=8)
    model = copy.deepcopy(model)
    model.embed = other.embed
    assert torch.equal(model.W_U, model.W_E.T)
    fresh = small(tie_word_embeddings=True)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(model(ids()), fresh(ids()))
    model.embed.W_E.zero_()
    assert not model(ids()).any()


def test_answers_that_a_model_cannot_say_are_named() -> None:
    mask = torch.zeros(3, 8, dtype=torch.bool)
    mask[:, 3:5] = True
    tokens = ids().masked_fill(torch.arange(8) > 3, 2)
    sources = torch.full((3, 8, 1), -1).masked_fill(mask.unsqueeze(2), 0)
    model = small(d_vocab_out=5)
    assert evaluate(model, Batch(tokens, mask, sources)).n_sequences == 3
    with pytest.raises(ValueError, match=r"d_vocab_out must be above every answer, got 5 .* 9;"):
        evaluate(model, Batch(tokens.masked_fill(tokens == 2, 9), mask, sources))
