"""Symbols to ids and back, and what is said about a symbol that is not there."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.vocab import LETTERS, Vocab, letter_vocab


def test_letters_follow_the_two_special_ids():
    vocab = letter_vocab(26)
    assert len(vocab) == 28
    assert vocab.encode("az") == [2, 27]
    assert vocab.decode([0, 1, 2, 27]) == ["<bos>", "<sep>", "a", "z"]


def test_all_62_letters_are_different_and_come_in_the_stated_order():
    assert letter_vocab(62).encode("zA") == [27, 28]
    assert letter_vocab(62).encode("Z0") == [53, 54]
    assert len(set(LETTERS)) == 62


@given(st.lists(st.integers(0, 63), max_size=20))
def test_encode_reads_back_what_decode_wrote(ids):
    vocab = letter_vocab(62)
    assert vocab.encode("".join(vocab.decode(ids))) == ids


def test_the_longest_symbol_is_read_first():
    assert Vocab(("a", "ab", "b")).encode("abb") == [1, 2]


@given(st.text(max_size=50))
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        ids = letter_vocab(5).encode(text)
    except ValueError as error:
        assert str(error).startswith("unknown symbol")
        assert str(error).isascii() and len(str(error).splitlines()) == 1
    else:
        assert "".join(letter_vocab(5).decode(ids)) == text


def test_unknown_symbols_are_listed_once_with_what_is_allowed():
    allowed = "<bos>, <sep>, a-z, A, B$"
    with pytest.raises(ValueError, match=rf"^unknown symbol '\?'; choose from {allowed}"):
        letter_vocab(28).encode("ab?c?")
    with pytest.raises(ValueError, match=r"^unknown symbols ' ', '\\n'; choose from"):
        letter_vocab(28).encode("a b\nc")
    with pytest.raises(ValueError, match=r"'!', '\"', .* and 5 more; choose from <bos>, <sep>, a$"):
        letter_vocab(1).encode("!\"#$%&'()*+,-./")


@pytest.mark.parametrize("n_symbols", [0, 63, -1])
def test_number_of_symbols_outside_the_letters_is_refused(n_symbols):
    with pytest.raises(
        ValueError, match=rf"^n_symbols must be from 1 to 62 \(a.* got {n_symbols}$"
    ):
        letter_vocab(n_symbols)


@pytest.mark.parametrize("token_id", [-1, 5])
def test_ids_outside_the_vocabulary_are_refused(token_id):
    with pytest.raises(ValueError, match=rf"^token id must be from 0 to 4, got {token_id}$"):
        letter_vocab(3).decode([0, token_id])


@pytest.mark.parametrize("symbols", [(), ("a", "a"), ("a", "")])
def test_symbols_that_could_not_be_read_back_are_refused(symbols):
    with pytest.raises(ValueError, match=r"^symbols must be different, non-empty names"):
        Vocab(symbols)


def test_vocab_needs_no_torch():
    code = "import sys, lab.vocab; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
