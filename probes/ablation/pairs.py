"""What two heads cost together, beside what each costs alone.

If the two do not replace each other, the costs add up: the joint change is the sum of the
single ones. The rest is the pair's interaction. Larger sets are for
`probes.ablation.shapley` and `probes.ablation.redundancy`.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from lab.checks import require_seed
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.naming import counted
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.ablation.metrics import MetricFunction
from probes.ablation.sweep import Ablation, sweep_sets
from probes.execution import Execution
from probes.intervals import bootstrap_interval, mean_over_rows
from probes.reading.observed_model import as_batch, provenance, require_gates
from probes.schemas.cause import PAIRS
from probes.tables import make_table

MOST_HEADS = 64
"""Most heads for which every pair is ablated: 2,016 pairs."""


def pair_effects(
    model: HookedGPT,
    batch: Batch | Tokens,
    heads: Iterable[Sequence[int]] | None = None,
    *,
    ablation: Ablation | None = None,
    metric: str | MetricFunction = "loss",
    attention_mask: GivenMask | None = None,
    execution: Execution | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Ablate every pair of some heads: one row a pair, the largest interaction first.

    interaction = joint - (first + second), each a change against the whole model; its interval
    resamples sequences, the same for all three. If two heads do the same job, each costs little
    alone, and the interaction is about the value of the job.

    Args:
        model: A HookedGPT.
        batch: Sequences of a task, or plain tokens; see `ablation_sweep`.
        heads: The (layer, head) pairs to combine, in original ids; None: all heads.
        ablation: What happens to ablated heads; None: zeros take their place.
        metric: What is measured: a name out of METRICS in `probes.ablation.metrics`, or a function.
        attention_mask: True at real tokens.
        execution: Memory, progress, ledger and processes of the sweep.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: Fewer than 2 heads or more than 64, or as `ablation_sweep`.
    """
    require_gates(model)
    require_seed(seed)
    ablation = Ablation() if ablation is None else ablation
    everyone = model.config.heads()
    chosen = everyone if heads is None else HeadGates.ablate(heads, like=model).heads
    if not 2 <= len(chosen) <= MOST_HEADS:
        raise ValueError(
            f"heads to pair must be 2 to {MOST_HEADS}, got {counted(len(chosen), 'head')}; name "
            "the ones that may replace each other (on the command line with --heads)"
        )
    pairs = list(combinations(range(len(chosen)), 2))
    swept = sweep_sets(
        model,
        batch,
        [(head,) for head in chosen] + [(chosen[a], chosen[b]) for a, b in pairs],
        ablation=ablation,
        metrics=(metric,),
        attention_mask=attention_mask,
        execution=execution,
    )
    totals, counts = swept.totals[:, :, 0], swept.counts[:, 0]
    changes = totals[:, 1:] - totals[:, :1]
    first, second = (changes[:, [pair[i] for pair in pairs]] for i in (0, 1))
    joint = changes[:, len(chosen) :]
    interaction = joint - first - second
    low, high = bootstrap_interval(interaction, counts, seed=seed)
    numbers = {
        "first": first,
        "second": second,
        "joint": joint,
        "interaction": interaction,
    }
    columns = {name: mean_over_rows(of, counts) for name, of in numbers.items()}
    order = np.argsort(-np.abs(columns["interaction"]), kind="stable")
    one, other = (np.array([chosen[pair[i]] for pair in pairs]) for i in (0, 1))
    measured = swept.metrics[0]
    about = {
        **provenance(model, as_batch(batch).tokens),
        "bootstrap_seed": seed,
        "ablation": ablation.to_dict(),
    }
    return make_table(
        {
            "layer": one[order, 0],
            "head": one[order, 1],
            "other_layer": other[order, 0],
            "other_head": other[order, 1],
            "metric": [measured.name] * len(pairs),
            "mode": [ablation.mode] * len(pairs),
            **{name: column[order] for name, column in columns.items()},
            "ci_low": low[order],
            "ci_high": high[order],
            "n_sequences": [swept.n_sequences] * len(pairs),
            "unit": [measured.unit] * len(pairs),
        },
        PAIRS,
        about,
    )
