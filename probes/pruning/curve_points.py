"""The points of a pruning curve: every pruned model on some paths, measured once.

Each is measured on a model whose heads are really gone, which is the cheaper the fewer are left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.naming import head_label
from lab.tasks.base import Batch
from probes.ablation.metrics import Metric
from probes.ablation.sweep import HeadSet, Swept, row_counts, sweep_sets
from probes.ablation.sweep_passes import RunTotals
from probes.execution import Execution
from probes.pruning.orders import PruningPath, Search, without
from probes.pruning.removing import cache_bytes, count_parameters
from probes.tables import digest


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """One pruned model, measured."""

    selection: Swept | None
    """None: no order was chosen by it."""
    held_out: Swept
    n_parameters: int
    cache_bytes: int


def measured_points(
    search: Search,
    paths: Sequence[PruningPath],
    held_out: Batch,
    metrics: tuple[Metric, ...],
) -> dict[HeadSet, Point]:
    """Measure every pruned model on the paths, each once."""
    chosen = {heads for path in paths if path.seed is None for heads in path.removed}
    points: dict[HeadSet, Point] = {}
    for path in paths:
        for heads in path.removed:
            if heads not in points:
                points[heads] = measured_point(search, heads, held_out, metrics, heads in chosen)
            search.tell()
    return points


def measured_point(
    search: Search, heads: HeadSet, held_out: Batch, metrics: tuple[Metric, ...], chosen: bool
) -> Point:
    """Measure the model without some heads; where they were chosen, on the selection too."""
    model = without(search.model, heads, search.ablation)
    name = digest(head_labels(heads).encode())[:16]

    def swept(batch: Batch, kind: str) -> Swept:
        def totals() -> RunTotals:
            names, execution = [each.name for each in metrics], Execution(memory=search.memory)
            return sweep_sets(model, batch, (), metrics=names, execution=execution).totals

        shape = (len(batch), 1, len(metrics))
        return Swept(
            sets=(),
            metrics=metrics,
            totals=search.ledger.kept(f"{kind}-{name}", shape, totals),
            counts=row_counts(batch, metrics),
        )

    return Point(
        selection=swept(search.batch, "selection") if chosen else None,
        held_out=swept(held_out, "held-out"),
        n_parameters=count_parameters(model),
        cache_bytes=cache_bytes(model),
    )


def head_labels(heads: Iterable[tuple[int, int]]) -> str:
    """Write heads in order: L0H1,L1H3."""
    return ",".join(head_label(layer, head) for layer, head in sorted(heads))
