"""Every number about heads in float64 against loops over sequences, rows and keys.

The loops know q, k, v and the weights, nothing else: no mask, no kernel, no vectorised formula.
Hypothesis draws shapes, groups of heads, positions, padding and direction.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from probes.attention.distances import head_distances
from probes.attention.entropy import SILENT_BELOW, entropy_profile
from probes.attention.heads import score_heads
from probes.attention.offsets import offset_spectrum
from probes.attention.peaks import head_peaks
from probes.writing.values import head_values

CLOSE = {"rtol": 0, "atol": 1e-10}
BOS = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and sequences for it, some of whose tokens may be padding."""

    options: dict[str, Any]
    real: torch.Tensor
    seed: int

    @property
    def config(self) -> ModelConfig:
        sizes = {"d_model": 12, "d_vocab": 5, "n_ctx": 8, "seed": self.seed}
        return ModelConfig(**sizes, **self.options)

    @property
    def tokens(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(0, 5, tuple(self.real.shape), generator=generator)

    @property
    def causal(self) -> bool:
        return self.config.attention_dir == "causal"


@st.composite
def cases(draw: Any) -> Case:
    n_heads, kv_heads = draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (4, 1), (3, 3)]))
    n_pos, batch = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    options = {
        "n_layers": draw(st.integers(1, 2)),
        "n_heads": n_heads,
        "n_key_value_heads": kv_heads,
        "d_head": draw(st.sampled_from([2, 4])),
        "positional_embedding_type": draw(st.sampled_from(["standard", "rotary", "none"])),
        "normalization_type": draw(st.sampled_from(["LN", "RMS", None])),
        "attention_dir": draw(st.sampled_from(["causal", "causal", "bidirectional"])),
        "initializer_range": draw(st.sampled_from([0.2, 0.8])),
    }
    real = torch.ones(batch, n_pos, dtype=torch.bool)
    if draw(st.booleans()):
        for row in real:
            left = draw(st.integers(0, n_pos - 1))
            right = draw(st.integers(0, n_pos - 1 - left)) if draw(st.booleans()) else 0
            row[:left] = False
            row[n_pos - right :] = False
    return Case(options=options, real=real, seed=draw(st.integers(0, 999)))


class Loops:
    """What the loops find: patterns as nested lists, from q and k, and scores made of them."""

    def __init__(self, case: Case, model: HookedGPT) -> None:
        self.case, self.model = case, model
        self.tokens, self.real = case.tokens.tolist(), case.real.tolist()
        self.n_pos = len(self.tokens[0])
        _, cache = model.run_with_cache(case.tokens, attention_mask=case.real)
        turned = "rot_" if case.config.positional_embedding_type == "rotary" else ""
        group = case.config.n_heads // case.config.kv_heads
        self.rows: dict[tuple[int, int, int, int], dict[int, float]] = {}
        self.values: dict[tuple[int, int], np.ndarray] = {}
        self.places = [(i, h) for i in range(model.cfg.n_layers) for h in range(model.cfg.n_heads)]
        for layer, head in self.places:
            q = cache[f"blocks.{layer}.attn.hook_{turned}q"][:, :, head].numpy()
            k = cache[f"blocks.{layer}.attn.hook_{turned}k"][:, :, head // group].numpy()
            self.values[layer, head] = cache["v", layer][:, :, head // group].numpy()
            for b in range(len(self.tokens)):
                for i in range(self.n_pos):
                    self.rows[layer, head, b, i] = self.row(q[b], k[b], b, i)

    def seen(self, b: int, i: int) -> list[int]:
        """Keys that row i sees."""
        if not self.real[b][i]:
            return []
        last = i + 1 if self.case.causal else self.n_pos
        return [j for j in range(last) if self.real[b][j]]

    def row(self, q: np.ndarray, k: np.ndarray, b: int, i: int) -> dict[int, float]:
        """One row of probabilities, by key."""
        scores = {}
        for j in self.seen(b, i):
            dot = sum(float(q[i, d]) * float(k[j, d]) for d in range(q.shape[1]))
            scores[j] = dot / math.sqrt(q.shape[1])
        top = max(scores.values(), default=0.0)
        total = sum(math.exp(s - top) for s in scores.values())
        return {j: math.exp(s - top) / total for j, s in scores.items()}

    def first(self, b: int) -> int:
        return self.real[b].index(True)

    def later(self, b: int, after: int = 0) -> list[int]:
        """Real rows more than so many places after the first real one."""
        return [i for i in range(self.n_pos) if self.real[b][i] and i > self.first(b) + after]

    def targets(self, probe: str, b: int, i: int) -> list[int]:
        """Keys of a probe in one row."""
        x, first = self.tokens[b], self.first(b)
        copies = [
            j for j in range(i) if self.real[b][j] and x[j] == x[i] != BOS and self.real[b][i]
        ]
        keys = {
            "previous": [i - 1] if i > first + (x[first] == BOS) else [],
            "current": [i] if i > first else [],
            "first": [first] if i > first else [],
            "duplicate": copies,
            "induction": [j + 1 for j in copies],
            "preceder": [j - 1 for j in copies if j >= 1 and x[j - 1] != BOS],
        }[probe]
        return [j for j in keys if self.real[b][i] and self.real[b][j]]


def entropy_of(row: dict[int, float]) -> float:
    return -sum(p * math.log(p) for p in row.values() if p > 0)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def check_probes(loops: Loops, scores: Any, peaks: Any) -> None:
    """Masses on targets and their chance; favourite keys, reliability, largest probability."""
    scored = scores.set_index(["layer", "head", "probe"])
    liked = peaks.set_index(["layer", "head", "probe"])
    for (layer, head, probe), found in scored.iterrows():
        masses, chance, hits, largest = [], [], [], []
        for b in range(len(loops.tokens)):
            for i in range(loops.n_pos):
                keys = loops.targets(probe, b, i)
                if not keys:
                    continue
                row = loops.rows[layer, head, b, i]
                masses.append(sum(row[j] for j in keys))
                chance.append(len(keys) / len(loops.seen(b, i)))
                top = max(row.values())
                tied = [j for j, p in row.items() if p >= top * (1 - 1e-4)]
                hits.append(len(set(tied) & set(keys)) / len(tied))
                largest.append(top)
        wanted = (mean(masses), mean(chance), len(masses))
        np.testing.assert_allclose(
            (found["score"], found["chance"], found["n_rows"]), wanted, **CLOSE
        )
        peak = liked.loc[(layer, head, probe)]
        low = float(np.percentile(masses, 10)) if masses else math.nan
        wanted = (mean(hits), low, mean(largest), len(masses))
        got = (peak["argmax_share"], peak["p10"], peak["largest"], peak["n_rows"])
        np.testing.assert_allclose(got, wanted, **CLOSE)


def check_entropy(loops: Loops, frame: Any) -> None:
    """Entropies of every row, with and without the first key."""
    for found in frame.to_dict("records"):
        rows, free, sinks, silent, rest = [], [], [], 0, 0
        for b in range(len(loops.tokens)):
            row = loops.rows[found["layer"], found["head"], b, found["query_pos"]]
            if not row:
                continue
            first = loops.first(b)
            rows.append(entropy_of(row))
            sinks.append(row.get(first, 0.0))
            others = {j: p for j, p in row.items() if j != first}
            left = sum(others.values())
            rest += bool(others)
            silent += bool(others) and left < SILENT_BELOW
            if others and left >= SILENT_BELOW:
                free.append(entropy_of({j: p / left for j, p in others.items()}))
        wanted = (mean(rows), mean(sinks), mean(free), silent / rest if rest else math.nan)
        got = [found[name] for name in ("entropy", "sink_mass", "sink_free", "silent")]
        np.testing.assert_allclose(got, wanted, **CLOSE)


def check_spectrum(loops: Loops, frame: Any, longest: int) -> None:
    """Attention at each distance over one set of rows."""
    rows = [
        (b, i)
        for b, x in enumerate(loops.tokens)
        for i in loops.later(b, max(0, longest - 1 + (x[loops.first(b)] == BOS)))
    ]
    assert len(frame) == len(loops.places) * (longest + 1)
    chance = mean([1 / len(loops.seen(b, i)) for b, i in rows])
    for found in frame.to_dict("records"):
        place = found["layer"], found["head"]
        mass = mean([loops.rows[*place, b, i].get(i - found["offset"], 0.0) for b, i in rows])
        wanted = (mass, chance, len(rows))
        np.testing.assert_allclose(
            (found["mass"], found["chance"], found["n_rows"]), wanted, **CLOSE
        )


def check_distances(loops: Loops, frame: Any) -> None:
    """Jensen-Shannon by its definition: the mean relative entropy to the mixture."""
    assert len(frame) == math.comb(len(loops.places), 2)
    for found in frame.to_dict("records"):
        one, other = (found["layer"], found["head"]), (found["other_layer"], found["other_head"])
        parts = []
        for b in range(len(loops.tokens)):
            for i in range(loops.n_pos):
                if len(loops.seen(b, i)) < 2:
                    continue
                p, r = loops.rows[*one, b, i], loops.rows[*other, b, i]
                middle = {j: (p[j] + r[j]) / 2 for j in p}
                apart = [
                    row[j] * math.log(row[j] / middle[j]) for row in (p, r) for j in p if row[j] > 0
                ]
                parts.append(sum(apart) / 2)
        np.testing.assert_allclose(
            (found["distance"], found["n_rows"]), (mean(parts), len(parts)), **CLOSE
        )


def check_values(loops: Loops, frame: Any) -> None:
    """What a head writes, summed key by key and dimension by dimension."""
    norms: dict[tuple[int, int], float] = {}
    found_by_place = {(row["layer"], row["head"]): row for row in frame.to_dict("records")}
    for layer, head in loops.places:
        W_O = loops.model.blocks[layer].attn.W_O[head].detach().numpy()
        sink, from_sink, written = [], [], []
        for b in range(len(loops.tokens)):
            v = loops.values[layer, head][b]
            for i in loops.later(b):
                row, first = loops.rows[layer, head, b, i], loops.first(b)
                z = sum(p * v[j] for j, p in row.items())
                sink.append(row.get(first, 0.0))
                from_sink.append(float(np.linalg.norm(row.get(first, 0.0) * v[first] @ W_O)))
                written.append(float(np.linalg.norm(z @ W_O)))
        found, norms[layer, head] = found_by_place[layer, head], mean(written)
        wanted = (mean(sink), mean(written), mean(from_sink) / mean(written))
        got = (found["sink_mass"], found["output_norm"], found["sink_value_share"])
        np.testing.assert_allclose(got, wanted, **CLOSE)
    for (layer, head), norm in norms.items():
        median = np.median([n for (i, _), n in norms.items() if i == layer])
        got = found_by_place[layer, head]["layer_share"]
        np.testing.assert_allclose(got, norm / median, **CLOSE)


def check(case: Case, longest: int) -> None:
    """Compare every table with the loops."""
    model = HookedGPT(case.config).double()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.b_V.normal_(generator=torch.Generator().manual_seed(1))
    loops = Loops(case, model)
    padded = None if bool(case.real.all()) else case.real
    words: dict[str, Any] = {"special_ids": (BOS,), "attention_mask": padded}
    scores = score_heads(model, case.tokens, **words)
    check_probes(loops, scores, head_peaks(model, case.tokens, **words))
    check_entropy(loops, entropy_profile(model, case.tokens, attention_mask=padded))
    longest = min(longest, loops.n_pos - 1)
    check_spectrum(loops, offset_spectrum(model, case.tokens, longest, **words), longest)
    check_distances(loops, head_distances(model, case.tokens, attention_mask=padded))
    check_values(loops, head_values(model, case.tokens, attention_mask=padded))


@settings(max_examples=5)
@given(case=cases(), longest=st.integers(0, 5))
def test_every_score_is_its_definition(case: Case, longest: int) -> None:
    check(case, longest)


@pytest.mark.slow
@settings(max_examples=50)
@given(case=cases(), longest=st.integers(0, 7))
def test_every_score_is_its_definition_in_many_more_cases(case: Case, longest: int) -> None:
    check(case, longest)
