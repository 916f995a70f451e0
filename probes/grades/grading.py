"""How good labels are, given what the heads are: precision, recall, confusions. No model here.

A table of graded heads has one row a head and labeler. Heads of gain below GRADED_FROM are left out
of precision and recall, and shown by gain instead; heads that are built of two kinds are counted
apart, because two answers are right.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from probes.head_classes import HEAD_CLASSES, shown_label
from probes.schemas import columns as c
from probes.schemas.columns import Schema
from probes.tables import make_table

BY_TASK = {own.name: own.looks == "task" for own in HEAD_CLASSES}
"""The classes of heads, and whether each depends on the task, which is reversal here."""
CLASSES = (
    *(shown_label(name, "reversal") for name in sorted(BY_TASK, key=lambda name: BY_TASK[name])),
    "uniform",
    "none",
)
"""What a head can be, and what a label is graded on."""
SCORED = CLASSES[:-1]
"""Classes that a labeler has a number for."""
NO_LABEL = ("none", "broad")
"""Answers that say that a head has no class."""
NOTHING_FOUND = ("none", "broad", "uniform")
"""Answers that are no discovery, for heads of a model that has learned nothing."""
GRADED_FROM = 6.0
"""Gain from which on a head must be called by its name."""
PARTS_WITHIN = 0.02
"""How near the reported share of a part has to be."""
APART = ("mixture", "lopsided")
"""Variants that are built of two kinds."""

LABELER = c.text("labeler", "who gave the label")
N_HEADS = c.whole("n_heads", "heads that were counted")
TRUTH = c.text("truth", "what the head is")
LABEL = c.text("label", "what it was called")

GRADED_HEADS = c.schema(
    "graded_heads",
    c.whole("seed", "seed of the model; -1: random weights"),
    c.whole("number", "which model of the seed"),
    *c.EACH_HEAD,
    TRUTH,
    c.text("variant", "what the head is an example of"),
    c.number("beta", "its gain"),
    c.flag("silent", "it writes nothing"),
    c.text("redundant_with", "heads of its layer that look alike"),
    c.text("parts", "what a mixed head is made of"),
    c.text("model", "norm, positions, key heads, basis"),
    LABELER,
    LABEL,
    c.flag("said_silent", "the labeler flags it as silent"),
    c.text("said_redundant_with", "heads it flags as alike"),
    c.text("said_mixture", "the parts that it reports"),
    *(c.number(name, f"the labeler's number for {name}") for name in SCORED),
)
CLASS_GRADES = c.schema(
    "class_grades",
    LABELER,
    c.text("class", "class, or macro: the mean over classes"),
    N_HEADS,
    c.number("precision", "heads so called that are so"),
    c.number("recall", "heads that are so and so called"),
    c.number("f1", "harmonic mean of the two"),
    c.number("pr_auc", "average precision of the number behind it"),
)
CONFUSION = c.schema("confusion", LABELER, TRUTH, LABEL, N_HEADS)
GAIN_RECALL = c.schema(
    "gain_recall",
    LABELER,
    TRUTH,
    c.number("beta", "gain of the heads"),
    N_HEADS,
    c.number("recall", "share that is called by its name"),
    c.number("wrong", "share that is called by another name"),
)
VARIANT_GRADES = c.schema(
    "variant_grades",
    LABELER,
    c.text("variant", "of a head, or what its model is made of"),
    N_HEADS,
    c.number("right", "share that is called by its name"),
)
FLAGS = c.schema(
    "flags",
    c.text("flag", "what is said beside, or instead of, a label"),
    N_HEADS,
    c.number("precision", "heads said to be so that are so"),
    c.number("recall", "heads that are so and are said to be"),
    c.text("meaning", "what was counted"),
)
FALSE_POSITIVES = c.schema(
    "false_positives",
    LABELER,
    N_HEADS,
    c.whole("n_labelled", "called other than none, broad, uniform"),
    c.number("rate", "their share"),
)


def named(label: str) -> str:
    """Return a label as it is graded: broad says, as none does, that there is no class."""
    return "none" if label in NO_LABEL else label


def has_to_be_named(heads: pd.DataFrame) -> pd.Series:
    """Return which rows precision and recall count."""
    sharp = (heads["beta"] >= GRADED_FROM) | heads["truth"].isin(["none", "uniform"])
    return sharp & ~heads["variant"].isin(APART)


def class_grades(heads: pd.DataFrame) -> pd.DataFrame:
    """Return precision, recall, F1 and average precision of each labeler and class.

    The last row of a labeler, macro, is the mean over the classes that it can answer; of those a
    class that is never answered has precision 0. All numbers of the others are NaN, and pr_auc
    where the labeler has no number for the class.
    """
    rows = []
    for labeler, of in heads[has_to_be_named(heads)].groupby("labeler", sort=False):
        called = of["label"].map(named)
        grades = [one_class(of, called, name) for name in CLASSES]
        n_heads, *numbers = (np.array(column) for column in zip(*grades, strict=True))
        macro = (int(n_heads.sum()), *(mean_of_known(column) for column in numbers))
        rows += [
            (labeler, name, *row)
            for name, row in zip((*CLASSES, "macro"), [*grades, macro], strict=True)
        ]
    return tabled(rows, CLASS_GRADES)


def one_class(
    of: pd.DataFrame, called: pd.Series, name: str
) -> tuple[int, float, float, float, float]:
    """Return heads, precision, recall, F1 and average precision of one class."""
    has_number = name in SCORED and bool(of[name].notna().any())
    is_it, said = (of["truth"] == name).to_numpy(), (called == name).to_numpy()
    right, answered, there = (is_it & said).sum(), said.sum(), is_it.sum()
    if not (has_number or answered):
        return int(there), np.nan, np.nan, np.nan, np.nan
    precision = float(right / answered) if answered else 0.0
    recall = float(right / there) if there else np.nan
    both = precision + recall
    f1 = 2 * precision * recall / both if both else 0.0
    pr_auc = average_precision(is_it, of[name].to_numpy(dtype=float)) if has_number else np.nan
    return int(there), precision, recall, float(f1), pr_auc


def mean_of_known(column: Float[np.ndarray, " class"]) -> float:
    """Return the mean of the known numbers; NaN if all are NaN."""
    known = column[~np.isnan(column)]
    return float(known.mean()) if len(known) else np.nan


def average_precision(is_it: Bool[np.ndarray, " head"], score: Float[np.ndarray, " head"]) -> float:
    """Return the area under precision over recall, in steps: sum of precision x gain in recall.

    Equal scores come in together; a head without a score comes last.

    >>> average_precision(np.array([True, False, True]), np.array([0.9, 0.8, 0.7]))
    0.8333333333333333
    """
    if not is_it.any():
        return float("nan")
    values = np.where(np.isnan(score), -np.inf, score)
    order = np.argsort(-values, kind="stable")
    hits, values = np.cumsum(is_it[order]), values[order]
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], True))
    precision, recall = hits[ends] / (ends + 1), hits[ends] / is_it.sum()
    return float((precision * np.diff(recall, prepend=0.0)).sum())


def confusion(heads: pd.DataFrame) -> pd.DataFrame:
    """Return how often heads of each kind got each label; those without a class by variant."""
    graded = heads[has_to_be_named(heads)]
    truth = graded["truth"].where(graded["truth"] != "none", "none: " + graded["variant"])
    apart = heads[heads["variant"].isin(APART)]
    kinds = pd.concat([truth, apart["variant"]])
    of = heads.loc[kinds.index].assign(truth=kinds)
    counts = Counter(zip(of["labeler"], of["truth"], of["label"], strict=True))
    order = {name: place for place, name in enumerate(CLASSES)}
    rows = [(*key, count) for key, count in counts.items()]
    rows.sort(key=lambda row: (row[0], order.get(row[1], len(order)), row[1], -row[3], row[2]))
    return tabled(rows, CONFUSION)


def variant_grades(heads: pd.DataFrame) -> pd.DataFrame:
    """Return the share of right answers of each variant, and of each kind of model.

    A mixture is right if it is called mixed or, where one part is larger, by that part.
    """
    graded = heads[has_to_be_named(heads) | heads["variant"].isin(APART)]
    right: Counter[tuple[str, str]] = Counter()
    there: Counter[tuple[str, str]] = Counter()
    columns = (graded[name] for name in ("labeler", "variant", "model", "truth", "label"))
    for labeler, variant, model, truth, label in zip(*columns, strict=True):
        traits = model.split(", ")
        norm_and_basis = f"{traits[0]}, {traits[-1]}"
        for name in (f"head: {variant}", *(f"model: {t}" for t in (*traits, norm_and_basis))):
            there[labeler, name] += 1
            right[labeler, name] += named(label) == truth
    rows = [(*key, count, right[key] / count) for key, count in there.items()]
    rows.sort(key=lambda row: row[:2])
    return tabled(rows, VARIANT_GRADES)


def gain_recall(heads: pd.DataFrame, gains: Sequence[float]) -> pd.DataFrame:
    """Return which share of the heads of each class and gain is called by its name."""
    named_kinds = [name for name in CLASSES if name not in ("uniform", "none")]
    plain = heads[heads["truth"].isin(named_kinds) & ~heads["variant"].isin(APART)]
    plain = plain[plain["beta"].isin(list(gains))]
    rows = []
    for (labeler, truth, beta), of in plain.groupby(["labeler", "truth", "beta"], sort=False):
        called = of["label"].map(named)
        right = called == truth
        wrong = ~right & (called != "none")
        rows.append((labeler, truth, beta, len(of), float(right.mean()), float(wrong.mean())))
    order = {name: place for place, name in enumerate(CLASSES)}
    rows.sort(key=lambda row: (row[0], order[row[1]], row[2]))
    return tabled(rows, GAIN_RECALL)


def false_positives(heads: pd.DataFrame) -> pd.DataFrame:
    """Return how many heads of models with random weights each labeler names."""
    rows = []
    for labeler, of in heads.groupby("labeler", sort=False):
        n_labelled = int((~of["label"].isin(NOTHING_FOUND)).sum())
        rows.append((labeler, len(of), n_labelled, n_labelled / len(of)))
    return tabled(rows, FALSE_POSITIVES)


def flags(heads: pd.DataFrame) -> pd.DataFrame:
    """Return how well one labeler flags silent heads and twins, and takes mixtures apart."""
    silent, twin = heads["silent"], heads["variant"] == "twin"
    even, built = heads["variant"] == "mixture", heads["variant"].isin(APART)
    found_twin = [
        bool(set(own.split(",")) & set(said.split(",")) - {""})
        for own, said in zip(heads["redundant_with"], heads["said_redundant_with"], strict=True)
    ]
    apart = [
        close_parts(own, said)
        for own, said in zip(heads["parts"], heads["said_mixture"], strict=True)
    ]
    rows = [
        ("silent", silent, heads["said_silent"], "writes nothing"),
        ("mixed", even, heads["label"] == "mixed", "two kinds of nearly equal share"),
        ("redundant", twin, pd.Series(found_twin, heads.index), "one of its twins is named"),
        ("parts", built, pd.Series(apart, heads.index), f"both shares within {PARTS_WITHIN}"),
    ]
    # The last two ask of known heads only, so that there is no wrong one to find.
    return tabled(
        [
            (name, *one_flag(is_it, said, precise=place < 2), told)
            for place, (name, is_it, said, told) in enumerate(rows)
        ],
        FLAGS,
    )


def one_flag(is_it: pd.Series, said: pd.Series, *, precise: bool) -> tuple[int, float, float]:
    """Return how many heads are so, and precision (if `precise`) and recall of what was said."""
    right, answered, there = int((is_it & said).sum()), int(said.sum()), int(is_it.sum())
    precision = right / answered if precise and answered else float("nan")
    return there, precision, right / there if there else float("nan")


def close_parts(own: str, said: str) -> bool:
    """Return whether all parts of a mixture are reported, each with about its share.

    >>> close_parts("previous 0.52 + first 0.48", "first 0.49 + previous 0.51")
    True
    >>> close_parts("previous 0.52 + first 0.48", "previous 0.52")
    False
    """
    told = shares_of(said)
    return bool(own) and all(
        abs(told.get(name, float("inf")) - share) <= PARTS_WITHIN + 1e-9
        for name, share in shares_of(own).items()
    )


def shares_of(parts: str) -> dict[str, float]:
    """Return the shares of a mixture by name."""
    pairs = (part.rsplit(" ", 1) for part in parts.split(" + ") if part)
    return {name: float(share) for name, share in pairs}


def tabled(rows: Sequence[tuple], schema: Schema) -> pd.DataFrame:
    """Return rows as a checked table of a schema."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema.names)
    return make_table(
        {name: list(column) for name, column in zip(schema.names, columns, strict=True)}, schema, {}
    )
