"""Text to token ids and back for models that come with a tokenizer, and names of tokens to show.

Tokenizers are fast ones of transformers. `lab.vocab` has the symbols of tasks.
"""

import errno
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.manifest import FileEntry, verified
from lab.naming import quoted
from lab.vocab import Vocab

TOKENIZER = "tokenizer.json"
FILES = (TOKENIZER, "tokenizer_config.json", "chat_template.jinja")
"""Files of a saved tokenizer; the last is optional."""
SPACE = "\N{OPEN BOX}"
"""Shows a space in the name of a token: web pages and figures hide plain spaces."""
BYTE_LEVEL = ("gpt-2", "smollm")
"""Byte-level BPE tokenizers of GGUF files (tokenizer.ggml.pre) that are built from metadata."""
CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens in GGUF's tokenizer.ggml.token_type that are matched before any merging."""


def read_tokenizer(folder: Path) -> Any | None:
    """Return the tokenizer of a folder, or None if it has no tokenizer.json.

    Raises:
        ValueError: Its files are damaged.
    """
    if not (folder / TOKENIZER).is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the Rust library raises plain Exception
        raise ValueError(
            f"{TOKENIZER} must be a tokenizer that transformers reads, got {quoted(str(error))} in "
            f"{str(folder)!r}; restore it from a copy or remove it"
        ) from None


def saved_tokenizer(folder: Path, entries: Mapping[str, FileEntry]) -> Any | None:
    """Return the tokenizer of a sealed folder, after checking its files.

    Raises:
        ValueError: One of them is missing, changed or damaged.
    """
    if TOKENIZER not in entries:
        return None
    for name in FILES:
        if name in entries:
            verified(folder, name, entries[name])
    return read_tokenizer(folder)


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write the files of a transformers tokenizer into a folder; for another kind, nothing.

    Raises:
        OSError: The place cannot be written or is full.
    """
    if tokenizer is None or isinstance(tokenizer, Vocab):
        return
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # the Rust library raises plain Exception
        raise OSError(errno.EIO, str(error)) from error


def check_tokenizer(tokenizer: Any) -> None:
    """Raise ValueError unless a tokenizer is one of transformers."""
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(
            "tokenizer must be one of transformers, which knows its BOS token, got "
            f"{quoted(type(tokenizer).__name__)}; wrap a tokenizer of the library tokenizers in "
            "transformers.PreTrainedTokenizerFast(tokenizer_object=...)"
        )


def adds_bos(tokenizer: Any) -> bool:
    """Return whether a tokenizer itself puts a beginning-of-sequence token before a text."""
    start = tokenizer("a", add_special_tokens=True)["input_ids"][:1]
    return tokenizer.bos_token_id is not None and start == [tokenizer.bos_token_id]


def encode(tokenizer: Any, text: str, prepend_bos: bool) -> list[int]:
    """Return the ids of a text, without added special tokens except BOS if `prepend_bos` is set.

    Raises:
        ValueError: prepend_bos is set and the tokenizer has no BOS.
    """
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not prepend_bos:
        return ids
    if tokenizer.bos_token_id is None:
        raise ValueError(
            "prepend_bos must be False for this tokenizer, got True: it has no BOS token"
        )
    return [tokenizer.bos_token_id, *ids]


def token_bytes(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """Return the bytes of each token, with the spaces before words.

    Raises:
        ValueError: An id is outside the vocabulary.
    """
    found = []
    for token_id, known in zip(ids, known_bytes(tokenizer, ids), strict=True):
        if known is None:
            raise ValueError(f"token id must be from 0 to {len(tokenizer) - 1}, got {token_id}")
        found.append(known)
    return found


def known_bytes(tokenizer: Any, ids: Sequence[int]) -> Iterator[bytes | None]:
    """Yield the bytes of each token; None for an id without a token."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer in Python has no backend
        yield from (tokenizer.decode([token_id]).encode() for token_id in ids)
        return
    added = tokenizer.added_tokens_decoder
    byte_level = "ByteLevel" in repr(backend.decoder)
    for token_id in ids:
        piece = backend.id_to_token(token_id) if token_id >= 0 else None
        if piece is None:
            yield None
        elif token_id in added:
            yield str(added[token_id]).encode()
        elif byte_level:
            yield bytes_of_piece(piece)
        elif re.fullmatch("<0x[0-9A-F]{2}>", piece):  # one byte, in SentencePiece's writing
            yield bytes([int(piece[3:5], 16)])
        else:
            yield piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text of each token on its own, spaces before words included.

    A byte that is not a character on its own becomes the replacement character, as in
    TransformerLens; its name in a `TokenVocab` shows it.
    """
    if isinstance(tokenizer, Vocab):
        return tokenizer.decode(ids)
    return [token.decode(errors="replace") for token in token_bytes(tokenizer, ids)]


@functools.cache
def byte_alphabet() -> Mapping[str, int]:
    """Return the byte that each character of a byte-level tokenizer represents.

    Printable Latin-1 characters represent themselves; characters from 256 on, the other bytes.
    Source: Radford et al. 2019 (GPT-2), encoder.py.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


def bytes_of_piece(piece: str) -> bytes:
    """Return the bytes of a byte-level token; a token outside the alphabet is its own text."""
    alphabet = byte_alphabet()
    if all(letter in alphabet for letter in piece):
        return bytes(alphabet[letter] for letter in piece)
    return piece.encode()


def shown(token: bytes) -> str:
    r"""Return the name of a token in tables and figures: different bytes have different names.

    Spaces become open boxes; line ends, other invisible characters, backslashes and open boxes
    themselves are escaped. So is every byte outside ASCII in a token that is not valid UTF-8.

    >>> print(ascii(shown(b" Paris")), shown(b"a\n"), shown(b"\xe2\x96"))
    '\u2423Paris' a\n \xe2\x96
    """
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return "".join(
            shown_letter(chr(byte)) if byte < 128 else f"\\x{byte:02x}" for byte in token
        )
    return "".join(map(shown_letter, text))


def shown_letter(letter: str) -> str:
    """Return one character of a token's name."""
    if letter == " ":
        return SPACE
    if letter == "\\":
        return "\\\\"
    if letter == SPACE or not letter.isprintable():
        code = ord(letter)  # not \\xa0 for a character, which would look like the byte
        return ascii(letter)[1:-1] if code < 128 else f"\\u{code:04x}"
    return letter


@functools.lru_cache(maxsize=4)
def token_vocab(tokenizer: Any, n_ids: int | None = None) -> Vocab:
    """Return the names of a tokenizer's tokens; a Vocab is its own.

    Args:
        tokenizer: The tokenizer.
        n_ids: How many ids to name, as a model's vocabulary is often larger than its tokenizer's;
            None: as many as the tokenizer has.
    """
    if isinstance(tokenizer, Vocab):
        return tokenizer
    return TokenVocab(tokenizer, max(n_ids or 0, len(tokenizer)))


class TokenVocab(Vocab):
    """The names of a tokenizer's tokens, for tables and figures.

    Tokens with the same bytes are distinguished by their ids (`a#17`), and an id that is no
    token's is named by itself (`#50300`).
    """

    __slots__ = ("tokenizer",)

    def __init__(self, tokenizer: Any, n_ids: int) -> None:
        names = [shown(token or b"") for token in known_bytes(tokenizer, range(n_ids))]
        times = Counter(names)
        super().__init__(
            tuple(
                f"{name}#{token_id}" if times[name] > 1 or not name else name
                for token_id, name in enumerate(names)
            )
        )
        object.__setattr__(
            self, "tokenizer", tokenizer
        )  # the names are frozen; this goes with them

    def encode(self, text: str) -> list[int]:
        return encode(self.tokenizer, text, prepend_bos=False)


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Any | None:
    """Build the tokenizer that a GGUF file describes; None if its kind is not supported."""
    pre = metadata.get("tokenizer.ggml.pre")
    if metadata.get("tokenizer.ggml.model") != "gpt2" or pre not in BYTE_LEVEL:
        return None
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    space = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    by_word = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*digits, by_word])
    backend.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in of_kind(tokens, kinds, CONTROL)]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) for t in of_kind(tokens, kinds, USER_DEFINED)]
    )
    special = {
        f"{name}_token": tokens[token_id]
        for name, key in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("unk", "unknown"),
            ("pad", "padding"),
        )
        if (token_id := metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None
    }
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.chat_template = metadata.get("tokenizer.chat_template")
    return tokenizer


def of_kind(tokens: Sequence[str], kinds: Sequence[int], kind: int) -> Iterator[str]:
    return (token for token, own in zip(tokens, kinds, strict=False) if own == kind)
