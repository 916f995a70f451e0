"""One token at a time while nobody looks: every architecture, beside whole forward passes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.config import SampleConfig
from lab.decoding import Decoder
from lab.gates import GateTensors, HeadGates
from lab.generation import Step, steps
from lab.hooked_gpt import HookedGPT
from lab.kv_cache import KeyValueCache
from tests.contracts.conftest import ARCHITECTURES

WRITERS = [name for name in ARCHITECTURES if name not in ("bidirectional", "other outputs")]
UNEVEN = {"kept_heads": ((0, 3, 4), ())}
GREEDY = SampleConfig(temperature=0.0)
PROMPTS = torch.tensor([[1, 4, 2, 7], [0, 0, 9, 3]])
PADDED = torch.tensor([[True, True, True, True], [False, False, True, True]])


def decoded(
    model: HookedGPT, mask: Tensor | None = None, gates: GateTensors | None = None
) -> Iterator[tuple[Step, Tensor]]:
    """Yield eight steps, each with the logits of a whole pass over the tokens so far."""
    tokens, real = PROMPTS, mask
    for step in steps(model, PROMPTS, GREEDY, 8, gates=gates, attention_mask=mask):
        with torch.no_grad():
            yield step, model(tokens, gates=gates, attention_mask=real)[:, -1]
        tokens = torch.cat([tokens, step.tokens.unsqueeze(1)], dim=1)
        real = None if real is None else torch.cat([real, torch.ones(2, 1).bool()], dim=1)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the steps that a Decoder takes: in vain compared, if forward took them all."""
    taken: list[int] = []
    step = Decoder.step

    def counting(self: Decoder, new: Tensor) -> Tensor:
        taken.append(self.cache.length)
        return step(self, new)

    monkeypatch.setattr(Decoder, "step", counting)
    return taken


@pytest.mark.parametrize(
    ("changes", "mask"), [({}, None), (UNEVEN, PADDED)], ids=["whole", "pruned and padded"]
)
@pytest.mark.parametrize("name", WRITERS)
def test_steps_have_the_logits_of_a_whole_pass(
    build: Callable[..., HookedGPT],
    counted: list[int],
    name: str,
    changes: dict[str, Any],
    mask: Tensor | None,
):
    for step, expected in decoded(build(name, **changes), mask):
        torch.testing.assert_close(step.logits, expected, atol=1e-10, rtol=1e-10)
    assert counted == list(range(4, 11))


@pytest.mark.parametrize("name", ["gpt2", "llama, 3 heads a key", "neox"])
def test_gates_act_at_every_step(build: Callable[..., HookedGPT], counted: list[int], name: str):
    model = build(name)
    g = HeadGates.ablate([(0, 1), (1, 2)], like=model, positions=(3, 5, 8)).tensors(model).g
    fill = torch.randn(2, 1, 16, 6, 6, generator=torch.Generator().manual_seed(1))
    for step, expected in decoded(model, PADDED, GateTensors(g=g, fill=fill)):
        torch.testing.assert_close(step.logits, expected, atol=1e-10, rtol=1e-10)
    assert len(counted) == 7


def test_a_hook_added_between_two_tokens_acts_until_it_is_removed(
    build: Callable[..., HookedGPT], counted: list[int]
):
    model = build("gpt2")
    looks = decoded(model)
    for _ in range(3):
        next(looks)
    # Behind the last norm there is no memory: a whole pass under the hook must agree.
    hook = model.ln_final.register_forward_hook(lambda _, given, out: out.flip(-1))
    for _ in range(2):
        step, expected = next(looks)
        torch.testing.assert_close(step.logits, expected, atol=1e-10, rtol=1e-10)
    assert counted == [4, 5]
    hook.remove()
    step, expected = next(looks)
    torch.testing.assert_close(step.logits, expected, atol=1e-10, rtol=1e-10)
    assert counted == [4, 5, 8]


@pytest.mark.parametrize("where", ["hook_embed", "blocks.1.attn", "blocks.0.mlp.hook_post"])
def test_no_hook_is_passed_over(build: Callable[..., HookedGPT], counted: list[int], where: str):
    model = build("gpt2")
    seen: list[int] = []
    looks = steps(model, PROMPTS, GREEDY, 4)
    next(looks)
    model.get_submodule(where).register_forward_hook(lambda *_: seen.append(1))
    assert len(list(looks)) == len(seen) == 3
    assert not counted


def test_a_cache_without_room_grows(build: Callable[..., HookedGPT]):
    model, cache = build("gpt2"), KeyValueCache(2)
    with torch.no_grad():
        model(PROMPTS, kv_cache=cache)
        step = Decoder(model, cache, None).step(PROMPTS[:, :1])
        whole = model(torch.cat([PROMPTS, PROMPTS[:, :1]], dim=1))[:, -1:]
    torch.testing.assert_close(step, whole, atol=1e-12, rtol=1e-12)
