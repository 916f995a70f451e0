"""Symbols and their token ids, both ways, without torch.

A task's vocabulary is `<bos>`, `<sep>` and then its letters. Tokenizers of pretrained models do not
belong here.
"""

import functools
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass

BOS_ID = 0
"""Token id of the beginning of a sequence."""
SEP_ID = 1
"""Token id between the given symbols and the answer."""
SPECIAL_SYMBOLS = ("<bos>", "<sep>")
"""Names of the ids before the first letter."""
LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits
"""The letters that a task can use, in the order of their ids."""


@dataclass(frozen=True, slots=True)
class Vocab:
    """The names of the token ids: symbols[i] is the name of id i.

    >>> vocab = letter_vocab(3)
    >>> vocab.encode("cab")
    [4, 2, 3]
    >>> vocab.decode([0, 4, 2, 3, 1])
    ['<bos>', 'c', 'a', 'b', '<sep>']
    """

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        """Reject names that cannot be parsed again."""
        if not self.symbols or "" in self.symbols or len(set(self.symbols)) < len(self.symbols):
            raise ValueError(f"symbols must be different, non-empty names, got {self.symbols!r}")

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text whose symbols follow each other without spaces.

        Where several symbols fit, the longest is read, so "".join(decode(ids)) encodes to ids.

        Raises:
            ValueError: a part of the text is not a symbol; all such parts and the allowed symbols
                are listed.
        """
        ids, unknown = [], []
        for match in _reader(self.symbols).finditer(text):
            symbol = match.group(1)
            if symbol is None:
                unknown.append(match.group())
            else:
                ids.append(_ids(self.symbols)[symbol])
        if unknown:
            raise ValueError(_unknown_symbols(unknown, self.symbols))
        return ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the name of each id.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        names = []
        for token_id in ids:
            if not 0 <= token_id < len(self.symbols):
                raise ValueError(
                    f"token id must be from 0 to {len(self.symbols) - 1}, got {token_id}"
                )
            names.append(self.symbols[token_id])
        return names


def letter_vocab(n_symbols: int) -> Vocab:
    """Return the vocabulary `<bos>`, `<sep>` and the first n_symbols letters.

    Raises:
        ValueError: n_symbols is not from 1 to 62, the number of letters and digits.
    """
    if not 1 <= n_symbols <= len(LETTERS):
        raise ValueError(
            f"n_symbols must be from 1 to {len(LETTERS)} (a-z, A-Z, 0-9), got {n_symbols}"
        )
    return Vocab((*SPECIAL_SYMBOLS, *LETTERS[:n_symbols]))


def _unknown_symbols(unknown: Iterable[str], allowed: Iterable[str]) -> str:
    """Say which symbols are not in the vocabulary and which are; one line, whatever they hold."""
    # A person's text may be a pasted page: ten symbols show what is wrong, and ascii() keeps
    # control characters and line separators from breaking the line.
    different = list(dict.fromkeys(unknown))
    shown = ", ".join(ascii(symbol) for symbol in different[:10])
    if len(different) > 10:
        shown += f" and {len(different) - 10} more"
    kind = "symbol" if len(different) == 1 else "symbols"
    return f"unknown {kind} {shown}; choose from {_ranges(allowed)}"


def _ranges(symbols: Iterable[str]) -> str:
    """Return symbols in short form: "a-z, A-C, <sep>"."""
    runs: list[list[str]] = []
    for symbol in symbols:
        follows = (
            runs and len(symbol) == len(runs[-1][-1]) == 1 and ord(symbol) == ord(runs[-1][-1]) + 1
        )
        if follows:
            runs[-1].append(symbol)
        else:
            runs.append([symbol])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


@functools.lru_cache(maxsize=64)
def _ids(symbols: tuple[str, ...]) -> dict[str, int]:
    return {symbol: token_id for token_id, symbol in enumerate(symbols)}


@functools.lru_cache(maxsize=64)
def _reader(symbols: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern that matches a symbol as group 1, else any one character."""
    longest_first = sorted(symbols, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})|.", re.DOTALL)
