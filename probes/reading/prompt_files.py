"""A person's own sequences from a file: texts, JSON lines or token ids, one sequence a line.

Whatever is wrong with a file is said with the number of the line. Sequences of different lengths
are padded on the right, where a causal model cannot see the padding; the mask says what is real.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn import functional as F

from lab.checks import is_whole
from lab.families.token_text import token_vocab
from lab.hooked_gpt import HookedGPT
from lab.naming import quoted
from lab.shapes import PositionMask, Tokens
from lab.tasks.base import Batch, Task
from lab.vocab import Vocab

FileKind = Literal["text", "jsonl", "ids"]
"""What a line is: a prompt; a JSON string, a list of ids or an object with "text" or "ids"; ids."""

LONGEST_FILE = 16 * 2**20
"""Bytes of a file of prompts."""

LONGEST_ID = 1_000
"""Digits of what is read as a number; no model has that many ids."""

Ids = list[int]
Given = tuple[int, str | Ids]
"""The number of a line, and the text or the ids that it holds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prompts:
    """Sequences from a file, ready to be probed."""

    sequences: Batch | Tokens
    """A task's batch where the lines are words of a task; else token ids."""
    attention_mask: PositionMask | None
    """True at real tokens; None: all tokens are real."""
    description: str
    """What they are, for the head of a table."""


def read_prompts(
    path: Path, kind: FileKind, model: HookedGPT, *, task: Task | None = None
) -> Prompts:
    """Read the sequences of a file for a model.

    Args:
        path: The file: UTF-8, one sequence a line.
        kind: What a line is.
        model: The model that will read them; its tokenizer turns texts into ids.
        task: The task of a run: a text is then the symbols that are given, and the sequence is laid
            out with the right answer as in training. Ids are taken as they are.

    Raises:
        ValueError: The file cannot be read or is not UTF-8, or a line is empty, longer than the
            context, not of this kind, or has an id that the model does not have.
    """
    name = quoted(str(path))
    given = [parsed(kind, number, line, name) for number, line in numbered_lines(path)]
    if not given:
        raise ValueError(
            f"a file of prompts must have at least one line, got none in {name}; "
            "write one sequence a line"
        )
    if task is not None and all(isinstance(what, str) for _, what in given):
        words = [word_batch(task, model, number, str(what), name) for number, what in given]
        batch, mask = joined_batch(words)
        return described(batch, mask, batch.tokens, model, name)
    if task is not None and any(isinstance(what, str) for _, what in given):
        raise ValueError(f"lines of {name} must be all texts or all ids for a run, got both")
    rows = [ids_of(model, number, what, name) for number, what in given]
    tokens, mask = joined_ids(rows)
    return described(tokens, mask, tokens, model, name)


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines of a file, from 1 on; empty lines at its end are ignored.

    Raises:
        ValueError: It cannot be read, is too large, is not UTF-8, or has an empty line in between.
    """
    name = quoted(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(
            f"a file of prompts must be readable, got {reason!r} at {name}; "
            "give the name of a file that you may read"
        ) from None
    if len(data) > LONGEST_FILE:
        raise ValueError(
            f"a file of prompts must have at most {LONGEST_FILE} bytes, got more in {name}; "
            "give a part of it"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(
            f"line {line} of {name} must be UTF-8 text, got the byte 0x{data[error.start]:02x}; "
            "save the file as UTF-8"
        ) from None
    lines = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]
    if lines == [""]:
        return []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise ValueError(f"line {number} of {name} must hold a prompt, got none; remove it")
    return list(enumerate(lines, start=1))


def parsed(kind: FileKind, number: int, line: str, name: str) -> Given:
    """Return what a line holds: a text or ids."""
    if kind == "text":
        return number, checked_text(line, number, name)
    if kind == "ids":
        return number, ids_in(line, number, name)
    found = json_value(line, number, name)
    if isinstance(found, dict):
        keys = list(found)
        if keys not in (["text"], ["ids"]):
            raise ValueError(
                f"line {number} of {name} must be an object with 'text' or 'ids' and no other key, "
                f"got the keys {quoted(sorted(keys))}"
            )
        found = found[keys[0]]
    if isinstance(found, str):
        return number, checked_text(found, number, name)
    if not isinstance(found, list):
        raise ValueError(
            f"line {number} of {name} must be a text, a list of token ids or an object with one of "
            f"them, got {quoted(found)}"
        )
    for place, one in enumerate(found, start=1):
        if not is_whole(one):
            raise ValueError(
                f"element {place} of the list on line {number} of {name} must be a token id, which "
                f"is a whole number, got {quoted(one)}"
            )
    return number, found


def ids_in(line: str, number: int, name: str) -> Ids:
    """Return the ids of a line of ids; brackets around all of them may stand."""
    text = line.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    words = re.split(r"\s*,\s*|\s+", text)
    for place, word in enumerate(words, start=1):
        if not re.fullmatch(rf"-?[0-9]{{1,{LONGEST_ID}}}", word):
            raise ValueError(
                f"line {number} of {name} must be token ids with spaces or commas between, "
                f"got {quoted(word)} as number {place}"
            )
    return [int(word) for word in words]


def json_value(line: str, number: int, name: str) -> Any:
    """Return what a line of JSON says; repeated keys are rejected."""
    twice: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                twice.append(key)
            found[key] = value
        return found

    try:
        found = json.loads(line, object_pairs_hook=collect)
    except (ValueError, RecursionError):
        raise ValueError(
            f"line {number} of {name} must be JSON, got {quoted(line)}; use --text for plain text"
        ) from None
    if twice:
        raise ValueError(
            f"keys on line {number} of {name} must be different, got {quoted(twice[0])} twice; "
            "remove one"
        )
    return found


def checked_text(text: str, number: int, name: str) -> str:
    """Return a text that can be encoded.

    Raises:
        ValueError: It is empty, or has half of a pair of surrogates, which JSON can spell.
    """
    if not text.strip():
        raise ValueError(f"line {number} of {name} must hold a prompt, got none; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"line {number} of {name} must be text, got an unpaired surrogate, "
            f"{quoted(text[error.start])}"
        ) from None
    return text


def ids_of(model: HookedGPT, number: int, what: str | Ids, name: str) -> Ids:
    """Return the ids of a line, once the model can read them."""
    ids = what if isinstance(what, list) else encoded(model, number, what, name)
    config = model.config
    if not ids:
        raise ValueError(f"line {number} of {name} must hold a token, got none; remove it")
    if len(ids) > config.n_ctx:
        raise ValueError(
            f"line {number} of {name} must be at most n_ctx = {config.n_ctx} tokens, got "
            f"{len(ids)}; shorten it"
        )
    unknown = next((one for one in ids if not 0 <= one < config.d_vocab), None)
    if unknown is not None:
        raise ValueError(
            f"token ids on line {number} of {name} must be from 0 to {config.d_vocab - 1}, "
            f"got {quoted(unknown)}; the vocabulary has no other ids"
        )
    return ids


def encoded(model: HookedGPT, number: int, text: str, name: str) -> Ids:
    """Return the ids of a text, after the tokenizer's BOS if it puts one before by itself."""
    if model.tokenizer is None:
        raise ValueError(
            f"line {number} of {name} must be token ids for a model without a tokenizer, got "
            f"{quoted(text)}; use --ids"
        )
    try:
        return model.to_tokens(text)[0].tolist()
    except ValueError as error:  # a vocabulary of symbols knows no others
        raise ValueError(f"line {number} of {name}: {error}") from None


def word_batch(task: Task, model: HookedGPT, number: int, text: str, name: str) -> Batch:
    """Return the sequence of a task's word, with the answer that is right."""
    try:
        batch = task.sequences(task.read(text))
    except ValueError as error:
        raise ValueError(f"line {number} of {name}: {error}") from None
    ids_of(model, number, batch.tokens[0].tolist(), name)
    return batch


def joined_ids(rows: Sequence[Ids]) -> tuple[Tokens, PositionMask | None]:
    """Return sequences as one tensor, padded on the right, and which tokens are real."""
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    tokens = torch.stack([F.pad(torch.tensor(row), (0, longest - len(row))) for row in rows])
    if bool((lengths == longest).all()):
        return tokens, None
    return tokens, torch.arange(longest) < lengths.unsqueeze(1)


def joined_batch(words: Sequence[Batch]) -> tuple[Batch, PositionMask | None]:
    """Return one batch of sequences of any lengths; padding has no answer and no source."""
    tokens, mask = joined_ids([word.tokens[0].tolist() for word in words])
    loss_mask = torch.zeros(tokens.shape, dtype=torch.bool)
    n_sources = max(word.sources.shape[2] for word in words)
    sources = torch.full((*tokens.shape, n_sources), -1)
    for row, word in enumerate(words):
        n_pos = word.tokens.shape[1]
        loss_mask[row, :n_pos] = word.loss_mask[0]
        sources[row, :n_pos, : word.sources.shape[2]] = word.sources[0]
    return Batch(tokens, loss_mask, sources), mask


def described(
    sequences: Batch | Tokens,
    mask: PositionMask | None,
    tokens: Tokens,
    model: HookedGPT,
    name: str,
) -> Prompts:
    """Return the prompts with a line that says how many, how long and what stands first."""
    lengths = [tokens.shape[1]] if mask is None else mask.sum(dim=1).tolist()
    shortest, longest = min(lengths), max(lengths)
    size = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
    several = "prompt" if len(tokens) == 1 else "prompts"
    of = "token" if size == "1" else "tokens"
    first = first_token(tokens[:, 0].tolist(), model)
    return Prompts(
        sequences=sequences,
        attention_mask=mask,
        description=f"{len(tokens)} {several} of {size} {of} from {name}; {first}",
    )


def first_token(ids: Sequence[int], model: HookedGPT) -> str:
    """Say what the sequences begin with: a head's scores depend on it."""
    if len(set(ids)) > 1:
        return "first tokens differ"
    vocab = model.tokenizer if isinstance(model.tokenizer, Vocab) else None
    if vocab is None and model.tokenizer is not None:
        vocab = token_vocab(model.tokenizer, model.config.d_vocab)
    named = "" if vocab is None else f" {ascii(vocab.symbols[ids[0]])[1:-1]}"
    return f"all begin with id {ids[0]}{named}"
