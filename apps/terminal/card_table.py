"""The card of the labels in a terminal: grades, confusions, recall by gain, false positives."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from apps.console import say, say_table
from probes.number_text import decimals, grouped, per_cent

if TYPE_CHECKING:
    import pandas as pd

    from probes.grades.card import Card


def say_card(card: "Card", seeds: Sequence[int]) -> None:
    """Print everything that is on the card."""
    built = card.heads[card.heads["seed"] >= 0]
    labelers = list(dict.fromkeys(built["labeler"]))
    ours = labelers[0]
    n_models = len(built[["seed", "number"]].drop_duplicates())
    n_heads = len(built) // len(labelers)
    say(
        f"{grouped(n_models)} planted models of seeds {seeds[0]} to {seeds[-1]}, "
        f"{grouped(n_heads)} heads; the labels' thresholds were chosen on seeds 0 to 99",
        "heads of gain 6 or more, and those that must not be named; mixtures are listed apart;",
        "macro: mean over the classes that a labeler knows",
        "",
    )
    say_grades(card.grades, labelers)
    say("", f"what heads of each kind were called by {ours}", "")
    say_confusion(card.confusion[card.confusion["labeler"] == ours])
    say("", f"share of heads that {ours} calls by their name, by what is hard about them", "")
    variants = card.variants[card.variants["labeler"] == ours].to_dict("records")
    rows = [
        [row["variant"], grouped(row["n_heads"]), decimals(row["right"], 3)] for row in variants
    ]
    say_table(["", "heads", "right"], rows)
    say(
        "",
        f"share of heads that {ours} calls by their name, by gain (a target scores that much more)",
        "",
    )
    say_recall(card.recall[card.recall["labeler"] == ours])
    say("", f"what {ours} says beside a label", "")
    rows = [
        [
            row["flag"],
            grouped(row["n_heads"]),
            decimals(row["precision"], 3),
            decimals(row["recall"], 3),
            row["meaning"],
        ]
        for row in card.flags.to_dict("records")
    ]
    say_table(["flag", "heads", "precision", "recall", "is"], rows, words=(0, 4))
    say(
        "",
        "heads of models with random weights that were named: other than none, broad, uniform",
        "",
    )
    rows = [
        [
            row["labeler"],
            grouped(row["n_heads"]),
            grouped(row["n_labelled"]),
            per_cent(row["rate"], 1),
        ]
        for row in card.false_positives.to_dict("records")
    ]
    say_table(["labeler", "heads", "named", "rate"], rows)


def say_grades(grades: "pd.DataFrame", labelers: Sequence[str]) -> None:
    """Print precision, recall, F1 and PR-AUC: a row a class, and for each labeler four columns."""
    header = ["class", "heads"]
    for labeler in labelers:
        header += [f"{labeler}\nprecision", "recall", "F1", "PR-AUC"]
    rows = []
    for name, of in grades.groupby("class", sort=False):
        by = of.set_index("labeler").loc[list(labelers)]
        row = [str(name), grouped(int(by["n_heads"].iloc[0]))]
        for numbers in by[["precision", "recall", "f1", "pr_auc"]].to_numpy():
            row += [decimals(number, 3) for number in numbers]
        rows.append(row)
    say_table(header, rows)


def say_confusion(confusion: "pd.DataFrame") -> None:
    """Print a row a kind of head and a column a label; an empty cell is 0."""
    labels = sorted(set(confusion["label"]), key=list(confusion["label"]).index)
    rows = []
    for truth, of in confusion.groupby("truth", sort=False):
        counts = dict(zip(of["label"], of["n_heads"], strict=True))
        rows.append([str(truth), *(grouped(counts[n]) if n in counts else "" for n in labels)])
    say_table(["heads that are", *labels], rows)


def say_recall(recall: "pd.DataFrame") -> None:
    """Print a row a class and a column a gain."""
    found: dict[str, dict[float, float]] = {}
    for row in recall.to_dict("records"):
        found.setdefault(row["truth"], {})[row["beta"]] = row["recall"]
    gains = sorted({gain for of in found.values() for gain in of})
    rows = [[truth, *(decimals(of.get(gain), 3) for gain in gains)] for truth, of in found.items()]
    say_table(["class", *(f"{gain:g}" for gain in gains)], rows)
