"""What the page of a report says about causes: which heads replace each other, and pruning.

The numbers in its tables are those of the CSV, character for character.
"""

import csv
import io
from collections.abc import Mapping, Sequence

import pandas as pd

from lab.naming import head_label
from probes.head_classes import shown_label
from probes.report.causes import Causes, redundancy_sentences
from probes.report.page import ENDS, figure, html_table, text
from probes.tables import csv_text

Cells = list[dict[str, str]]


def cause_sections(causes: Causes, figures: Mapping[str, bytes], task: str | None) -> list[str]:
    """Return the parts of the page about causes; none of what was not measured.

    Args:
        causes: What was found.
        figures: PNG files by name: joint, shapley, pruning and first_order, as far as they are.
        task: The task that the model was trained on, if any.
    """
    parts: list[str] = []
    if causes.redundancy is not None:
        parts += group_parts(causes.redundancy, figures["joint"], task)
    if causes.shapley is not None:
        parts += [
            "<h3>Shared out among the heads</h3>",
            "<p>A head's Shapley value is what its ablation adds, averaged over every order in "
            "which the heads could go. The values sum to the effect of all of them together "
            f"({cells_of(causes.shapley)[0]['joint']} {text(str(causes.shapley['unit'].iloc[0]))});"
            " alone and last are the two ends that a head's worth lies between.</p>",
            figure(figures["shapley"], "Shapley value of every head, with its interval"),
            table_of(causes.shapley, ("value", "ci_low", "ci_high", "alone", "last")),
        ]
    if causes.pruning is not None and causes.removable is not None:
        parts += [
            "<h3>How small it can get</h3>",
            "<p>Each step removes the head whose ablation costs least on sequences kept for "
            "choosing; the curve is measured on others. The band spans random orders. The table "
            "says how many heads can be removed while the held-out number is worse by at most the "
            "share; for random orders, the median, the worst and the best.</p>",
            figure(figures["pruning"], "Held-out metric by heads removed, beside random orders"),
            table_of(
                causes.removable,
                ("metric", "within", "removable", "low", "high", "n_orders"),
                named="order",
            ),
        ]
    if causes.first_order is not None:
        parts += [
            "<h3>What a gradient would have said</h3>",
            "<p>First-order estimates cost two passes where exact ablations cost one a head. Here "
            "they are held against the exact ones, by ranks and by the heads that both put on "
            "top.</p>",
            figure(figures["first_order"], "Importance against exact ablation, head by head"),
            table_of(
                causes.first_order.agreement,
                ("compared_with", "spearman", "ci_low", "ci_high", "shared", "top"),
                named="estimator",
            ),
        ]
    return parts


def group_parts(redundancy: pd.DataFrame, joint: bytes, task: str | None) -> list[str]:
    """Return what the page says of groups of heads."""
    names = {str(name): shown_label(str(name), task) for name in redundancy["group"].unique()}
    said = " ".join(redundancy_sentences(redundancy, names))
    n = int(redundancy["n_sequences"].max())
    cells = cells_of(redundancy)
    columns = ("delta", "ci_low", "ci_high", "last", "control", "control_in_layers")
    rows = [
        [
            name_of(row, "head") if row["head"] else "all together",
            names[row["group"]],
            *(row[name] for name in columns),
            row["verdict"],
        ]
        for row in cells
    ]
    header = ["head", "group", "change", *ENDS.values(), "last of its group", "as many others"]
    header += ["of its layers"]
    return [
        "<h3>Which heads replace each other</h3>",
        f"<p>{text(said)} A single head's change is a lower bound of what it does. "
        f"Measured on {n} of the sequences. Each group is compared with random sets of as many "
        "other heads, from its layers where there are enough.</p>",
        figure(joint, "Heads of one group ablated one by one, added up, and all together"),
        html_table([*header, "verdict"], rows, [False, False, *[True] * 6, False]),
    ]


def table_of(frame: pd.DataFrame, columns: Sequence[str], named: str = "head") -> str:
    """Return some columns of a table behind the name of each row: a head, or a column."""
    rows = [
        [
            head_label(int(row["layer"]), int(row["head"]))
            if named == "head"
            else name_of(row, named),
            *(row[name] for name in columns),
        ]
        for row in cells_of(frame)
    ]
    numeric = [pd.api.types.is_numeric_dtype(frame[name]) for name in columns]
    header = [named, *(ENDS.get(name, name.replace("_", " ")) for name in columns)]
    return html_table(header, rows, [False, *numeric])


def name_of(row: Mapping[str, str], named: str) -> str:
    """Name a row: by its head, or by a column and by how its scores were made comparable."""
    if named == "head":
        return head_label(int(row["layer"]), int(row["head"]))
    by = row.get("normalise", "")
    return row[named] if by in ("", "none") else f"{row[named]}, by {by}"


def cells_of(frame: pd.DataFrame) -> Cells:
    """Return the rows of a table in the very characters of its CSV."""
    return list(csv.DictReader(io.StringIO(csv_text(frame))))
