"""Text and token ids by a tokenizer, and names of tokens that hide nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lab.config import ModelConfig
from lab.families.token_text import (
    TokenVocab,
    adds_bos,
    byte_alphabet,
    gguf_tokenizer,
    read_tokenizer,
    shown,
    token_bytes,
    token_texts,
    token_vocab,
)
from lab.hooked_gpt import HookedGPT
from probes.attention.maps import attention_map
from probes.writing.next_token import next_token_table

SPACE = "\N{OPEN BOX}"


def byte_tokens() -> Iterator[str]:
    """Yield the characters of a byte-level vocabulary in the order of GPT-2's own file."""
    return iter(byte_alphabet())


def metadata(pre: str = "smollm") -> dict[str, Any]:
    """Describe a small byte-level tokenizer as a GGUF file does."""
    merges = ["h e", "l l", "he ll", "hell o", "\u0120 hello", "1 2", "\u00e2 \u0124"]
    tokens = ["<bos>", "<eos>", *byte_tokens(), *(merge.replace(" ", "") for merge in merges)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return gguf_tokenizer(metadata())


def test_gguf_tokenizer(tokenizer: Any):
    texts = [
        "hello hello",
        "hello<eos>hello",
        " hello",
        "na\u00efve \U0001f600 \n\t  x",
        "he said 1212",
    ]
    for text in texts:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("hello hello<eos>12")["input_ids"])
    assert pieces == ["hello", "\u0120hello", "<eos>", "1", "2"]  # digits are split before merging
    assert tokenizer.bos_token_id == 0
    assert tokenizer.eos_token_id == 1
    assert tokenizer.chat_template == "{{ messages }}"
    gpt2: Any = gguf_tokenizer(metadata("gpt-2"))
    assert gpt2.convert_ids_to_tokens(gpt2("12")["input_ids"]) == ["12"]


def test_other_kinds_of_gguf_tokenizers_are_left_out():
    assert gguf_tokenizer(metadata("qwen35")) is None
    assert gguf_tokenizer({**metadata(), "tokenizer.ggml.model": "llama"}) is None
    assert gguf_tokenizer({}) is None


def test_every_token_has_a_name_of_its_own(tokenizer: Any):
    vocab = token_vocab(tokenizer)
    assert isinstance(vocab, TokenVocab)
    assert len(set(vocab.symbols)) == len(vocab) == len(tokenizer)
    ids = vocab.encode(" hello\n\u20ac")
    assert vocab.decode(ids) == [f"{SPACE}hello", "\\n", "\\xe2\\x82", "\\xac"]
    assert token_vocab(tokenizer) is vocab


def test_bytes_of_tokens_join_to_the_text(tokenizer: Any):
    text = "hello  \u00e9t\u00e9 \U0001f600\r\n<eos>12"
    assert b"".join(token_bytes(tokenizer, tokenizer(text)["input_ids"])).decode() == text
    with pytest.raises(ValueError, match="token id must be from 0 to 264, got 265"):
        token_bytes(tokenizer, [265])


def test_names_differ_where_tokens_do():
    tokens = [b" a", b"a", b"a ", b"\xc2\xa0", b"\xa0", b"\\xa0", b"\n", b"\\n", b"\xe2\x90\xa3"]
    tokens += [b"\xe2\x80\x8b", b"\xf0\x9f\x98\x80", b"\x00", b"\xff"]
    names = [shown(token) for token in tokens]
    assert len(set(names)) == len(tokens)
    assert all(name.isprintable() and " " not in name for name in names)


def test_sentencepiece_tokens():
    """Spaces before words, single bytes, and two tokens that stand for the same text."""
    vocab = {"a": 0, "b": 1, "\u2581a": 2, "<0x61>": 3, "<0xE2>": 4}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert token_texts(tokenizer, [2, 3, 4]) == [" a", "a", "\ufffd"]
    names = TokenVocab(tokenizer, 6).symbols
    assert names == ("a#0", "b", f"{SPACE}a", "a#3", "\\xe2", "#5")


def test_a_model_with_a_tokenizer(tokenizer: Any, tmp_path: Path):
    config = ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=len(tokenizer) + 2, n_ctx=16)
    model = HookedGPT(config)
    model.tokenizer = tokenizer
    model.provenance = "made in a test"
    tokens = model.to_tokens("hello hello")
    assert tokens.tolist() == [tokenizer("hello hello")["input_ids"]]
    assert model.to_tokens("hello", prepend_bos=True)[0, 0] == 0
    assert model.to_string(tokens[0]) == "hello hello"
    assert model.to_str_tokens("hello hello") == ["hello", " hello"]
    assert model.to_single_token(" hello") == tokens[0, 1]
    table = next_token_table(model, tokens, k=1)
    assert next_token_table(model, tokens, k=len(tokenizer) + 2)["token"].str.contains("#266").any()
    assert table.attrs["weights"] == "made in a test"
    cells = attention_map(model, tokens, layer=0, head=0)
    assert cells["query_token"].unique().tolist() == ["hello", f"{SPACE}hello"]

    model.save(tmp_path / "saved")
    again = HookedGPT.load(tmp_path / "saved")
    assert again.provenance == "made in a test"
    assert torch.equal(again.to_tokens("hello 12<eos>"), model.to_tokens("hello 12<eos>"))
    path = tmp_path / "saved" / "tokenizer.json"
    path.write_text(path.read_text().replace("<eos>", "<EOS>"))
    with pytest.raises(ValueError, match=r"tokenizer.json must have the sha256"):
        HookedGPT.load(tmp_path / "saved")
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json must be a tokenizer that transformers"):
        read_tokenizer(tmp_path / "saved")


def test_who_prepends_bos(tokenizer: Any):
    assert not adds_bos(tokenizer)
    backend = Tokenizer(models.WordLevel(vocab={"<s>": 0, "a": 1}, unk_token="<s>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    assert adds_bos(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))
