"""Repeated blocks, their control, and answers traded between sequences."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from lab.config import ModelConfig
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.reading.inputs import can_repeat, content_control, repeated_batch, repeated_pair


def config(d_vocab=60, n_ctx=64):
    return ModelConfig(n_layers=1, n_heads=1, d_model=8, d_vocab=d_vocab, n_ctx=n_ctx)


def blocks(tokens, pair):
    first = tokens[:, pair.first : pair.second]
    return first, tokens[:, pair.second :]


def test_second_block_repeats_the_first_and_the_control_s_does_not():
    pair = repeated_pair(config(), n_sequences=5, seed=1)
    assert (pair.block, pair.first, pair.second) == (25, 1, 26)
    assert pair.tokens.shape == pair.control.shape == (5, 51)
    a, again = blocks(pair.tokens, pair)
    b, same = blocks(pair.control, pair)
    assert torch.equal(a, again)
    assert torch.equal(a, same)
    for one, other in zip(a.tolist(), b.tolist(), strict=True):
        assert len({*one, *other}) == 50  # nothing else repeats, within a block or between
        assert min(*one, *other) >= 2
    assert (pair.tokens[:, 0] == 0).all()
    assert pair.special_ids == (0,)


def test_null_has_no_repeat_in_either_arm():
    pair = repeated_pair(config(d_vocab=80), n_sequences=4, repeats=False)
    for arm in (pair.tokens, pair.control):
        for row in arm.tolist():
            assert len(set(row)) == len(row)
    assert torch.equal(pair.tokens[:, pair.second :], pair.control[:, pair.second :])
    assert "no repeats" in pair.description


@pytest.mark.parametrize(
    ("d_vocab", "n_ctx", "block"), [(60, 18, 8), (22, 64, 10), (1000, 1000, 25), (10, 9, 4)]
)
def test_block_is_as_long_as_context_and_vocabulary_allow(d_vocab, n_ctx, block):
    assert repeated_pair(config(d_vocab, n_ctx), n_sequences=1).block == block
    assert can_repeat(config(d_vocab, n_ctx))


def test_one_seed_draws_the_same_and_another_one_others():
    one, same, other = (repeated_pair(config(), n_sequences=3, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.tokens, same.tokens)
    assert not torch.equal(one.tokens, other.tokens)


def test_prefix_and_ids_can_be_chosen_and_are_told():
    pair = repeated_pair(config(), prefix=None, ids=range(10, 40), block=12, n_sequences=2)
    assert pair.first == 0
    assert pair.special_ids == ()
    assert pair.tokens.shape == (2, 24)
    assert pair.tokens.min() >= 10
    expected = "2 sequences, blocks of 12, no prefix, 30 ids from 10 to 39"
    assert pair.description == f"{expected} without replacement, seed 0"
    assert "prefix id 7" in repeated_pair(config(), prefix=7).description


def test_tokenizer_says_what_begins_a_sequence_and_what_is_no_word():
    tokenizer = SimpleNamespace(bos_token_id=3, eos_token_id=4, all_special_ids=[3, 4, 9])
    model = SimpleNamespace(cfg=SimpleNamespace(d_vocab=40, n_ctx=99), tokenizer=tokenizer)
    pair = repeated_pair(model, n_sequences=3)
    assert (pair.tokens[:, 0] == 3).all()
    assert set(pair.ids) == set(range(40)) - {3, 4, 9}
    tokenizer.bos_token_id = None
    assert (repeated_pair(model, n_sequences=1).tokens[:, 0] == 4).all()
    model.cfg.d_vocab = 50_000
    pair = repeated_pair(model, n_sequences=1)
    assert (min(pair.ids), max(pair.ids)) == (1_000, 39_999)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": 3}, r"block must be a whole number from 4 to 29, the most that n_ctx = 64 and"),
        ({"block": 30}, r"58 different ids allow, got 30"),
        ({"ids": [5] * 60}, r"different ids without the prefix, got 60 ids, 1 of them different"),
        ({"ids": range(60)}, r"ids to draw from must .* with the prefix 0"),
        ({"ids": range(50, 70)}, r"ids to draw from must be a whole number of at most 59, got 60"),
        (
            {"ids": range(2, 9), "block": 4},
            r"block must be at least 4 tokens, but n_ctx = 64 and 7",
        ),
        ({"ids": range(2, 9)}, r"blocks of 4 tokens .* n_ctx = 64 and 7 different ids allow 3; gi"),
        ({"prefix": 60}, r"prefix must be a whole number of at most 59, got 60"),
        ({"n_sequences": 0}, r"n_sequences must be a whole number of at least 1, got 0"),
        ({"seed": -1}, r"seed must be a whole number of at least 0, got -1"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        repeated_pair(config(), **changes)


def test_too_small_a_model_has_no_blocks():
    assert not can_repeat(config(n_ctx=8))
    with pytest.raises(
        ValueError, match=r"model must have room for .*n_ctx = 8 and 58 .*; give seq"
    ):
        repeated_pair(config(n_ctx=8))
    with pytest.raises(ValueError, match="model that says d_vocab and n_ctx, or a ModelConfig"):
        repeated_pair("gpt2")


def test_answers_are_traded_and_what_is_asked_stays():
    batch = get_task("reversal", length=3).sequences(torch.tensor([[2, 3, 4], [5, 6, 7]]))
    control = content_control(batch)
    assert control.tolist() == [[0, 2, 3, 4, 1, 7, 6, 5], [0, 5, 6, 7, 1, 4, 3, 2]]
    induction = get_task("induction", length=3).sequences(torch.tensor([[2, 3, 4], [5, 6, 7]]))
    assert content_control(induction)[0].tolist() == [0, 2, 3, 4, 2, 6, 7]


def test_answers_of_different_lengths_are_traded_where_both_have_one():
    tokens = torch.tensor([[0, 2, 1, 2, 9], [0, 3, 1, 4, 5]])
    loss_mask = torch.tensor([[0, 0, 1, 0, 0], [0, 0, 1, 1, 0]]).bool()
    batch = Batch(tokens, loss_mask, torch.full((2, 5, 1), -1))
    assert content_control(batch).tolist() == [[0, 2, 1, 4, 9], [0, 3, 1, 2, 5]]
    with pytest.raises(ValueError, match="sequences to trade answers must be at least 2, got 1"):
        content_control(batch[:1])


def test_pair_can_be_given_other_arms():
    pair = repeated_pair(config(), n_sequences=2)
    null = dataclasses.replace(pair, tokens=pair.control)
    assert len(null) == 2
    assert torch.equal(null.tokens, pair.control)


def test_scored_rows_are_those_that_the_first_block_foretells():
    batch = repeated_batch(config(d_vocab=200, n_ctx=99), n_sequences=2)
    assert batch.tokens.shape == (2, 81)
    assert batch.loss_mask.sum(dim=1).tolist() == [39, 39]
    for row, asked, sources in zip(batch.tokens, batch.loss_mask, batch.sources, strict=True):
        seen = row.tolist()
        for p in range(81):
            # Written out: the next token stood before, and what stood before it is this token.
            known = p > 40 and p + 1 < 81
            assert bool(asked[p]) == known
            source = seen.index(seen[p + 1]) if known else -1
            assert sources[p].tolist() == [source]
            assert not known or seen[source - 1] == seen[p]


def test_batch_of_a_pair_is_its_repeated_arm():
    pair = repeated_pair(config(), n_sequences=3, block=6, prefix=None)
    assert torch.equal(pair.batch().tokens, pair.tokens)
    same = repeated_batch(config(), n_sequences=3, block=6, prefix=None)
    assert torch.equal(same.tokens, pair.tokens)
    assert same.loss_mask[0].nonzero().flatten().tolist() == [6, 7, 8, 9, 10]
    assert repeated_batch(config(d_vocab=30)).tokens.shape == (8, 29)  # as the vocabulary allows
