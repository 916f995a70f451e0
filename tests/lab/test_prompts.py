"""Prompts, stop ids and masks: the forms that people type, and what is refused."""

from typing import Any

import pytest
import torch

from lab.config import ModelConfig, SampleConfig
from lab.generation import generate, left_padded, steps
from lab.hooked_gpt import HookedGPT
from lab.vocab import Vocab

FOUR = torch.tensor([[0, 3, 5, 1], [0, 2, 2, 4], [0, 4, 1, 5]])


def spelling_model() -> HookedGPT:
    model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=6, n_ctx=9)).eval()
    model.tokenizer = Vocab(("<bos>", "a", "b", "c", "d", "ab"))
    return model


@pytest.mark.usefixtures("as_a_user")
def test_prompts_stop_ids_and_masks_in_the_forms_that_people_type():
    model, greedy = spelling_model(), SampleConfig(temperature=0.0)
    wanted = generate(model, torch.tensor([[1, 3]]), greedy, 3)
    for one in ("ac", ["ac"], [1, 3], [[1, 3]], (1, 3), torch.tensor([1, 3])):
        assert torch.equal(generate(model, one, greedy, 3), wanted)
    assert generate(model, ["ac", "db"], greedy, 2).shape == (2, 4)
    first = int(wanted[0, 2])
    letter = model.tokenizer.decode([first])[0]
    for stop in (first, letter, [letter], (first,), torch.tensor(first)):
        assert generate(model, "ac", greedy, 3, stop_ids=stop).tolist() == [[1, 3, first]]
    tokens, mask = torch.tensor([[0, 1, 3]]), torch.tensor([[0, 1, 1]])
    wanted = generate(model, tokens, greedy, 3, attention_mask=mask)
    for one in ([[0, 1, 1]], [0, 1, 1], [False, True, True], mask[0]):
        assert torch.equal(generate(model, [0, 1, 3], greedy, 3, attention_mask=one), wanted)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": [[1, 2], [3]]}, r"prompts must be token ids, in lists of one length, got "),
        ({"tokens": [0.5]}, r"prompts must be whole numbers, got torch.float32"),
        ({"tokens": None}, r"prompts must be token ids"),
        ({"tokens": []}, r"prompt must have at least 1 token"),
        ({"tokens": [[[1]]]}, r"prompts must be of shape \[batch, pos\] or \[pos\], got shape "),
        ({"tokens": ["a", 1]}, r"input must be a tensor of token ids or a text, got 1"),
        ({"stop_ids": "ac"}, r"'ac' must be a single token, got 2 tokens"),
        ({"stop_ids": [1.0]}, r"stop_ids must be token ids or texts of one, got 1.0"),
        ({"stop_ids": None}, r"stop_ids must be token ids or texts of one, got None"),
        ({"attention_mask": [[0]]}, r"attention_mask must be of shape \(1, 2\), got \(1, 1\)"),
        (
            {"attention_mask": "11"},
            r"attention_mask must be 0 at padding and 1 at tokens, got '11'",
        ),
    ],
)
def test_what_is_no_prompt_says_so(changes: dict[str, Any], said: str):
    asked = {"tokens": [1, 3], "config": SampleConfig(), "max_new_tokens": 2, **changes}
    with pytest.raises(ValueError, match=f"^{said}"):
        generate(spelling_model(), **asked)


def test_a_text_needs_a_tokenizer():
    model = spelling_model()
    model.tokenizer = None
    with pytest.raises(ValueError, match="input must be token ids, got the text 'ac'"):
        generate(model, "ac", SampleConfig(), 2)


def test_prompts_are_padded_on_the_left() -> None:
    tokens, mask = left_padded([torch.tensor([5, 6, 7]), [8]], pad_id=3)
    assert tokens.tolist() == [[5, 6, 7], [3, 3, 8]]
    assert mask.tolist() == [[True] * 3, [False, False, True]]


@pytest.mark.parametrize(("prompts", "lengths"), [([], r"\[\]"), ([[1], []], r"\[1, 0\]")])
def test_no_prompt_and_empty_prompts_are_refused(prompts: list, lengths: str) -> None:
    with pytest.raises(ValueError, match=rf"at least 1 token each, got lengths {lengths}$"):
        left_padded(prompts)


@pytest.mark.parametrize(
    ("row", "shown"),
    [([1, 1, 1, 0], r"\[1, 1, 1, 0\]"), ([1, 0, 1, 1], r"\[1, 0, 1, 1\]"), ([0] * 4, r"\[0, .*")],
)
def test_padding_behind_or_inside_a_prompt_is_refused(row: list[int], shown: str) -> None:
    mask = torch.ones(3, 4, dtype=torch.int64)
    mask[1] = torch.tensor(row)
    with pytest.raises(ValueError, match=rf"^attention_mask must be 0 at .* got {shown} in row 1;"):
        steps(spelling_model(), FOUR, SampleConfig(), 1, attention_mask=mask)


@pytest.mark.usefixtures("as_a_user")
def test_a_mask_of_another_shape_is_refused() -> None:
    mask = torch.zeros(3, 5, dtype=torch.bool)
    with pytest.raises(
        ValueError, match=r"^attention_mask must be of shape \(3, 4\), got \(3, 5\)"
    ):
        steps(spelling_model(), FOUR, SampleConfig(), 1, attention_mask=mask)
