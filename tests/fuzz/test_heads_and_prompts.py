"""What a person types for heads and prompts: understood, or refused in one short line."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from apps.opened_run import parse_heads
from lab.naming import head_label, parse_head
from lab.tasks.base import Task
from lab.tasks.registry import TASKS, get_task

label = st.builds(head_label, st.integers(0, 99_999), st.integers(0, 99_999))
near_label = st.one_of(
    label,
    st.from_regex(r"[Ll ]?-?[0-9]{0,6}[Hh.,]?[0-9]{0,6}\n?", fullmatch=True),
    st.sampled_from(["L0H0,", ",", "L\u0660H\u0661", "L0H0\0", "L1e3H0", "L" * 9_999]),
    st.text(max_size=6),
)
lists = st.lists(st.lists(near_label, max_size=3).map(",".join), max_size=3).map(tuple)

symbols = st.text("abcdABCD01", max_size=12)
texts = st.one_of(
    symbols,
    st.lists(st.sampled_from(["a", "b", "<bos>", "<sep>", " ", "\n", "\ud800", "\u0301"])).map(
        "".join
    ),
    st.text(max_size=12),
    st.sampled_from(["", "a" * 100_000, "\u20ac" * 100_000, "a\0b"]),
)


def refusal(error: ValueError) -> str:
    """Return what an error says, which must be one short line."""
    line = str(error)
    assert line.isascii() and line.isprintable() and len(line) < 1_000
    return line


@settings(max_examples=100)
@given(lists)
@example(("L0H1,L1H1", "L0H0"))
@example(("L9999H9999",))
@example(("L10000H0",))
def test_head_lists_are_pairs_or_refused(labels: tuple[str, ...]) -> None:
    parts = [part for text in labels for part in text.split(",")]
    fine = [re.fullmatch(r"L([0-9]{1,4})H([0-9]{1,4})", part) for part in parts]
    try:
        heads = parse_heads(labels)
    except ValueError as error:
        assert not all(fine)
        assert refusal(error).startswith("a head must be written like L0H3, got ")
        return
    assert heads == tuple((int(match[1]), int(match[2])) for match in fine if match)
    assert [parse_head(head_label(*head)) for head in heads] == list(heads)


@settings(max_examples=100)
@given(
    st.sampled_from([entry.name for entry in TASKS]),
    st.integers(1, 12),
    st.sampled_from([1, 4, 26, 62]),
    texts,
)
def test_prompts_are_read_or_refused(name: str, length: int, n_symbols: int, text: str) -> None:
    try:
        task: Task = get_task(name, length=length, n_symbols=n_symbols)
        tokens = task.prompt(text)
    except ValueError as error:
        refusal(error)
        return
    assert 1 <= len(text) <= task.n_given
    letters = [symbol for symbol in task.vocab.decode(tokens[0].tolist()) if len(symbol) == 1]
    assert "".join(letters).startswith(text)
    whole = task.sequences(task.read(text)).tokens
    assert whole[:, : tokens.shape[1]].equal(tokens) and whole.shape[1] <= task.n_tokens
