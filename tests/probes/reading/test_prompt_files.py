"""Prompts from files: what is read, and the one line, with its number, for whatever is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.tasks.registry import get_task
from lab.vocab import letter_vocab
from probes.attention.heads import score_heads
from probes.reading.prompt_files import LONGEST_FILE, Prompts, read_prompts

TASK = get_task("reversal", length=4, n_symbols=5)


@pytest.fixture(scope="module")
def model() -> HookedGPT:
    config = ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=7, n_ctx=10)
    model = HookedGPT(config).double()
    model.tokenizer = letter_vocab(5)
    return model


@pytest.fixture
def read(model: HookedGPT, tmp_path: Path):
    """The function that writes a file and reads it for the model."""

    def run(kind: str, content: str | bytes, **given: object) -> Prompts:
        path = tmp_path / "p.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_prompts(path, kind, model, **given)

    return run


def test_texts_of_one_length_need_no_mask(read) -> None:
    assert read("ids", "1\n").description.startswith("1 prompt of 1 token from ")
    prompts = read("text", "<bos>ab\n<bos>cd\n")
    assert prompts.sequences.tolist() == [[0, 2, 3], [0, 4, 5]]
    assert prompts.attention_mask is None
    assert prompts.description.startswith("2 prompts of 3 tokens from ")
    assert prompts.description.endswith("p.txt'; all begin with id 0 <bos>")


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text", "abc\r\na\r\n\r\n"),
        ("text", "\ufeffabc\na"),
        ("ids", "2 3 4\n2"),
        ("ids", "[2, 3,4]\n2\n\n\n"),
        ("jsonl", '"abc"\n[2]\n'),
        ("jsonl", '{"text": "abc"}\n{"ids": [2]}'),
    ],
)
def test_lines_of_any_kind_are_padded_behind(kind: str, content: str, read) -> None:
    prompts = read(kind, content)
    assert prompts.sequences.tolist() == [[2, 3, 4], [2, 0, 0]]
    assert prompts.attention_mask.tolist() == [[True] * 3, [True, False, False]]
    assert prompts.description.startswith("2 prompts of 1 to 3 tokens from ")


def test_padding_changes_no_score(read, model: HookedGPT) -> None:
    both = read("text", "<bos>abcabc\n<bos>dad\n")
    together = score_heads(model, both.sequences, attention_mask=both.attention_mask)
    alone = [
        score_heads(model, read("text", line).sequences) for line in ("<bos>abcabc", "<bos>dad")
    ]
    rows = sum(frame["n_rows"] for frame in alone)
    mean = sum((frame["score"] * frame["n_rows"]).fillna(0.0) for frame in alone) / rows
    np.testing.assert_allclose(together["score"], mean, rtol=1e-9)


def test_words_of_a_task_come_with_their_answers(read) -> None:
    prompts = read("text", "abcd\nab\n", task=TASK)
    batch, short = prompts.sequences, TASK.sequences(TASK.read("ab"))
    whole = TASK.sequences(TASK.read("abcd"))
    assert torch.equal(batch.tokens[0], whole.tokens[0])
    assert torch.equal(batch.sources[0], whole.sources[0])
    n = short.tokens.shape[1]
    assert torch.equal(batch.tokens[1, :n], short.tokens[0])
    assert torch.equal(batch.sources[1, :n], short.sources[0])
    assert (batch.sources[1, n:] == -1).all()
    assert not batch.loss_mask[1, n:].any()
    assert batch.loss_mask.sum(dim=1).tolist() == [4, 2]
    assert prompts.attention_mask.sum(dim=1).tolist() == [10, 6]
    ids = read("ids", "0 2 3", task=TASK).sequences
    assert ids.tolist() == [[0, 2, 3]]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("text", "", "must have at least one line, got none in .*; write one sequence a line"),
        ("text", "\n\n", "a file of prompts must have at least one line, got none in "),
        ("text", "ab\n\nab", "line 2 of .* must hold a prompt, got none; remove it"),
        ("text", "ab\n \t\nab", "line 2 of .* must hold a prompt, got none; remove it"),
        ("text", "a\nabcdeabcdea\n", "line 2 of .* must be at most n_ctx = 10 tokens, got 11; sho"),
        ("text", "ab\nabz", "line 2 of .*: unknown symbol 'z'; choose from <bos>, <sep>, a-e"),
        ("text", b"ab\nab\xff\n", "line 2 of .* must be UTF-8 text, got the byte 0xff; save"),
        ("text", b"\xff\xfea\x00b\x00", "line 1 of .* must be UTF-8 text, got the byte 0xff"),
        ("text", b"\x00\x1b[31m", r"line 1 of .*: unknown symbols '\\x00', '\\x1b'"),
        ("ids", "1 2\n1 7", "token ids on line 2 of .* must be from 0 to 6, got 7"),
        ("ids", "1 -1", "token ids on line 1 of .* must be from 0 to 6, got -1"),
        ("ids", "1 2.5", "line 1 of .* must be token ids with spaces or commas between, got '2.5'"),
        ("ids", "9" * 500, "token ids on line 1 of .* must be from 0 to 6, got 9{90}"),
        ("ids", "1 " + "9" * 30, "on line 1 of .* must be from 0 to 6, got 9{30}; the vocabulary"),
        ("ids", "9" * 5000, "line 1 of .* must be token ids .*, got '9{90}"),
        ("ids", "0,,2", "line 1 of .* must be token ids .*, got '' as number 2"),
        ("ids", "0,2,", "line 1 of .* must be token ids .*, got '' as number 3"),
        ("ids", "[[0,2", "line 1 of .* must be token ids .*, got '\\[\\[0' as number 1"),
        ("jsonl", '{"text": "a", "text": "b"}', "keys on line 1 of .* different, got 'text' twice"),
        ("jsonl", '{"text": "a", "n": 1}', r"and no other key, got the keys \['n', 'text'\]"),
        ("jsonl", "[0, 1.0]", "element 2 of the list on line 1 of .* whole number, got 1.0"),
        ("jsonl", "[0, NaN, 2]", "element 2 of the list on line 1 of .* whole number, got nan"),
        ("jsonl", '{"ids": [0, "2"]}', "element 2 of the list on line 1 of .* number, got '2'"),
        ("ids", "[]", "line 1 of .* must be token ids .*, got ''"),
        ("ids", "1 \u0661", r"line 1 of .* must be token ids .*, got '\\u0661'"),
        ("jsonl", "ab", "line 1 of .* must be JSON, got 'ab'; use --text for plain text"),
        ("jsonl", "[" * 100_000, "line 1 of .* must be JSON, got "),
        ("jsonl", '{"text": "a", "ids": [1]}', "object with 'text' or 'ids' and no other key, go"),
        ("jsonl", '{"prompt": "a"}', r"must be an object with .*, got the keys \['prompt'\]"),
        ("jsonl", "[1, true]", "element 2 of the list on line 1 of .* whole number, got True"),
        ("jsonl", "[[1]]", r"element 1 of the list on line 1 of .* whole number, got \[1\]"),
        ("jsonl", "null", "line 1 of .* must be a text, a list of token ids or .*, got None"),
        ("jsonl", "[]", "line 1 of .* must hold a token, got none; remove it"),
        ("jsonl", '{"text": ""}', "line 1 of .* must hold a prompt, got none; remove it"),
        ("jsonl", '"\\ud800"', r"line 1 of .* must be text, got an unpaired surrogate, '\\ud800'"),
        ("jsonl", "[1e400]", "element 1 of the list on line 1 of .* whole number, got inf"),
        ("jsonl", "[" + "9" * 5000 + "]", "line 1 of .* must be JSON|token ids on line 1 of "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_its_number(kind: str, content, message: str, read) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read(kind, content)
    text = str(caught.value)
    assert "\n" not in text
    assert text.isascii() and text.isprintable() and len(text) < 500


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("abcd\nabcde", "line 2 of .*: prompt must be 1 to 4 symbols for reversal of length 4, go"),
        ("abz", "line 1 of .*: unknown symbol 'z'; choose from a-e"),
    ],
)
def test_words_that_are_none_are_refused(content: str, message: str, read) -> None:
    with pytest.raises(ValueError, match=message):
        read("text", content, task=TASK)
    with pytest.raises(ValueError, match=r"must be all texts or all ids for a run, got both"):
        read("jsonl", f"{json.dumps('ab')}\n[1]", task=TASK)


def test_a_place_that_is_no_file_is_refused(model: HookedGPT, tmp_path: Path) -> None:
    for place, reason in ((tmp_path, "Is a directory"), (tmp_path / "x", "No such file or dir")):
        with pytest.raises(ValueError, match=f"must be readable, got '{reason}.*; give the"):
            read_prompts(place, "text", model)
    with pytest.raises(ValueError, match="file of prompts must be readable, got 'embedded null"):
        read_prompts(Path("a\0b"), "text", model)
    (tmp_path / "big").write_bytes(b"a" * (LONGEST_FILE + 1))
    with pytest.raises(ValueError, match="must have at most 16777216 bytes, got more in "):
        read_prompts(tmp_path / "big", "text", model)


def test_a_text_needs_a_tokenizer(tmp_path: Path) -> None:
    bare = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=7, n_ctx=10))
    (tmp_path / "p").write_text("hello\n")
    with pytest.raises(ValueError, match="must be token ids for a model without a tokenizer, got "):
        read_prompts(tmp_path / "p", "text", bare)
    (tmp_path / "p").write_text("1 2\n3 2\n")
    prompts = read_prompts(tmp_path / "p", "ids", bare)
    assert prompts.description.endswith("; first tokens differ")
