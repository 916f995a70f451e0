"""Text for choosing and text for reporting: whole sequences, and no topic on both sides."""

import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lab.python_topics import topic_sequences, topic_texts, topics_of
from lab.vocab import letter_vocab


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character that it knows, so that sequences can be read back."""
    letters = sorted({c for text in topic_texts().values() for c in text if c.isascii()})
    inner = Tokenizer(
        models.WordLevel({"<s>": 0} | {c: i for i, c in enumerate(letters, 1)}, "<s>")
    )
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


def test_every_topic_is_on_one_side() -> None:
    selection, held_out = set(topics_of("selection")), set(topics_of("held-out"))
    assert not selection & held_out
    assert selection | held_out == set(topic_texts())
    assert min(len(selection), len(held_out)) >= len(topic_texts()) // 3
    # A split that moved between versions of headlab would mix what was chosen on with the report.
    assert "integers" in selection and "lambda" in held_out


def test_sequences_are_consecutive_text_of_one_topic(tokenizer: PreTrainedTokenizerFast) -> None:
    found = topic_sequences(tokenizer, "held-out", n_sequences=60, n_tokens=50)
    assert found.tokens.shape == (60, 50)
    assert (found.tokens[:, 0] == 0).all()
    seen: dict[str, int] = {}
    for topic, row in zip(found.topics, found.tokens.tolist(), strict=True):
        nth = seen.get(topic, 0)
        seen[topic] = nth + 1
        text = topic_texts()[topic][49 * nth : 49 * (nth + 1)]
        known = ["".join(tokenizer.convert_ids_to_tokens([i])) for i in row[1:]]
        assert all(a == b or not b.isascii() for a, b in zip(known, text, strict=True)), topic
    # Nobody gives a second sequence before everybody who can gave a first.
    long_enough = [n for n in topics_of("held-out") if len(topic_texts()[n]) >= 49]
    assert list(found.topics[: len(long_enough)]) == long_enough
    assert found.description.startswith("60 sequences of 50 tokens from ")
    assert "2940 of their" in found.description


def test_fewer_sequences_are_the_first_ones(tokenizer: PreTrainedTokenizerFast) -> None:
    few, many = (topic_sequences(tokenizer, "selection", n_sequences=n) for n in (3, 9))
    assert few.tokens.equal(many.tokens[:3])
    assert len(topic_sequences(tokenizer, "selection", n_tokens=4096).tokens) >= 10


def test_what_cannot_be_given(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"n_sequences must be at most \d+, .* got 1000000; take"):
        topic_sequences(tokenizer, "selection", n_sequences=1_000_000)
    with pytest.raises(ValueError, match=r"must be a text tokenizer .* got the symbols of a task"):
        topic_sequences(letter_vocab(5), "selection")
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match="this Python must have its documentation topics"):
        topic_texts()
