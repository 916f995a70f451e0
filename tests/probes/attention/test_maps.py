"""Whole maps of single sequences: the right head, the right sequence, the right marks."""

import numpy as np
import pytest
import torch

from lab.tasks.registry import get_task
from lab.vocab import Vocab
from probes.attention.maps import attention_map, sequence_maps, token_labels


def test_map_is_the_pattern_of_that_head_and_sequence(small_model, repeating_batch):
    _, cache = small_model.run_with_cache(repeating_batch.tokens)
    frame = attention_map(small_model, repeating_batch, layer=1, head=2, sequence=3)
    grid = frame.pivot(index="query_pos", columns="key_pos", values="probability").fillna(0.0)
    np.testing.assert_allclose(grid, cache["pattern", 1][3, 2], atol=1e-12)
    assert (frame["key_pos"] <= frame["query_pos"]).all()


def test_sources_are_marked_and_tokens_named(small_model, repeating_batch):
    vocab = get_task("reversal", length=6, n_symbols=4).vocab
    frame = attention_map(small_model, repeating_batch, layer=0, head=0, vocab=vocab)
    marked = frame[frame["is_source"]]
    assert (marked["query_pos"] + marked["key_pos"] == 13).all()
    assert len(marked) == 6
    names = vocab.decode(repeating_batch.tokens[0].tolist())
    assert frame["key_token"].tolist() == [names[k] for k in frame["key_pos"]]
    assert frame["query_token"].tolist() == [names[q] for q in frame["query_pos"]]


def test_plain_tokens_have_no_marks_and_are_numbers(small_model):
    frame = attention_map(small_model, torch.tensor([[0, 5, 2]]), layer=0, head=0)
    assert not frame["is_source"].any()
    assert frame["query_token"].unique().tolist() == ["0", "5", "2"]
    assert token_labels([1], Vocab(("a", "b"))) == ["b"]


def test_bidirectional_maps_are_whole(build_model):
    model = build_model(attention_dir="bidirectional")
    frame = attention_map(model, torch.tensor([[0, 5, 2]]), layer=0, head=0)
    assert len(frame) == 9
    assert frame.groupby("query_pos")["probability"].sum().tolist() == pytest.approx([1.0] * 3)


def test_what_cannot_be_drawn_is_refused(small_model, repeating_batch):
    with pytest.raises(ValueError, match=r"unknown head 'L2H0'; choose from L0H0, .*"):
        attention_map(small_model, repeating_batch, layer=2, head=0)
    with pytest.raises(ValueError, match="sequence must be from 0 to 4"):
        attention_map(small_model, repeating_batch, layer=0, head=0, sequence=5)
    with pytest.raises(ValueError, match="at most 128 tokens, got 200"):
        sequence_maps(small_model, torch.zeros(1, 200, dtype=torch.long))
