"""Answers are the next tokens that count, and their number is a difference of logits."""

from functools import partial

import pytest
import torch

from lab.tasks.registry import get_task
from probes.borrowed.answers import Answers, require_pairs
from probes.borrowed.attribution import logit_attribution
from probes.borrowed.edges import edge_attribution
from probes.borrowed.lens import logit_lens
from probes.borrowed.patching import patch_activations

LOGITS = torch.arange(24.0).view(1, 4, 6) ** 2


def test_between_asks_where_both_count_and_differ():
    task = get_task("reversal", length=3)
    clean, corrupt = (task.sequences(task.read(text)) for text in ("abc", "abd"))
    asked = Answers.between(clean, corrupt)
    assert asked.rows.nonzero()[:, 1].tolist() == [4]  # SEP, which predicts c or d
    letters = clean.tokens[0, 3], corrupt.tokens[0, 3]
    assert (asked.right[0, 4], asked.wrong[0, 4]) == letters
    logits = torch.randn(1, 8, 28, generator=torch.Generator().manual_seed(0))
    expected = logits[0, 4, letters[0]] - logits[0, 4, letters[1]]
    torch.testing.assert_close(asked(logits), expected.reshape(1))


def test_of_plain_tokens_is_the_mean_logit_of_what_follows():
    asked = Answers.of(torch.tensor([[5, 1, 2, 0]]))
    expected = (LOGITS[0, 0, 1] + LOGITS[0, 1, 2] + LOGITS[0, 2, 0]) / 3
    torch.testing.assert_close(asked(LOGITS), expected.reshape(1))


def test_after_asks_in_the_last_row_only():
    prompts = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]])
    logits = torch.cat([LOGITS, -LOGITS])
    asked = Answers.after(prompts, torch.tensor([4, 5]), torch.tensor([1, 0]))
    expected = torch.stack([LOGITS[0, 3, 4] - LOGITS[0, 3, 1], LOGITS[0, 3, 0] - LOGITS[0, 3, 5]])
    torch.testing.assert_close(asked(logits), expected)
    torch.testing.assert_close(asked[1:](logits[1:]), expected[1:])
    alone = Answers.after(prompts, torch.tensor([4, 5]))
    torch.testing.assert_close(alone(logits), torch.stack([LOGITS[0, 3, 4], -LOGITS[0, 3, 5]]))


def test_what_cannot_be_asked_is_told_in_one_line(as_a_user):
    tokens = torch.tensor([[0, 1, 2, 3]])
    with pytest.raises(ValueError, match=r"must have different answers .* pass answers=Answers.af"):
        Answers.between(tokens, tokens)
    with pytest.raises(ValueError, match=r"as many sequences of one length, got \[1, 4\] and \[1,"):
        require_pairs(tokens, tokens[:, :3])
    with pytest.raises(ValueError, match=r"answers must be ids from 0 to 5, .* got 0 to 9"):
        Answers.after(tokens, torch.tensor([9]))(LOGITS)


def test_answers_of_other_prompts_are_told_in_one_line(as_a_user):
    prompts = torch.tensor([[0, 1, 2, 3]] * 3)
    with pytest.raises(ValueError, match=r"right must be one id for each of the 3 prompts, got th"):
        Answers.after(prompts, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"wrong must be .* 3 prompts, got the shape \[3, 1\]"):
        Answers.after(prompts, torch.tensor([1, 2, 3]), torch.tensor([[1], [2], [3]]))


@pytest.mark.filterwarnings("error")
def test_nothing_asked_is_told_by_every_tool(build_model, as_a_user):
    model, one_token = build_model(), torch.tensor([[1], [2]])
    for tool in (logit_lens, logit_attribution, partial(logit_lens, by_position=True)):
        with pytest.raises(ValueError, match="answers must have at least one scored row, got none"):
            tool(model, one_token)
        with pytest.raises(ValueError, match=r"shape \[2, 1\] of the tokens, got \[1, 3\]"):
            tool(model, one_token, answers=Answers.of(torch.tensor([[1, 2, 3]])))
    nothing = Answers.of(one_token)
    for tool in (patch_activations, edge_attribution):
        with pytest.raises(ValueError, match="answers must have at least one scored row, got none"):
            tool(model, one_token, one_token, answers=nothing)


def test_a_model_in_training_mode_is_read_and_put_back(build_model, as_a_user):
    """One rule for every tool; TransformerLens refuses such a model in three lines of names."""
    model = build_model().eval()
    tokens, other = torch.tensor([[0, 2, 3, 4]]), torch.tensor([[0, 2, 5, 5]])
    tools = [
        partial(patch_activations, clean=tokens, corrupt=other),
        partial(edge_attribution, clean=tokens, corrupt=other),
        partial(logit_lens, batch_or_tokens=tokens),
        partial(logit_attribution, batch_or_tokens=tokens),
    ]
    for tool in tools:
        expected = tool(model)
        model.train()
        model.ln_final.eval()
        assert tool(model).equals(expected)
        assert [module for module in model.modules() if not module.training] == [
            *model.ln_final.modules()
        ]
        model.eval()
