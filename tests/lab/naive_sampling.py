"""What a draw is, written out one number at a time in Python's float64."""

import math

from lab.config import SampleConfig


def naive_probabilities(logits: list[float], config: SampleConfig) -> list[float]:
    """The definition, one number at a time, in Python's float64."""
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if config.temperature == 0:
        return [float(i == ranked[0]) for i in range(len(logits))]
    best = max(logits)
    weights = [math.exp((x - best) / config.temperature) for x in logits]
    kept = ranked[: config.top_k]
    total = math.fsum(weights[i] for i in kept)
    if config.top_p is not None:
        nucleus, mass = [], 0.0
        for i in kept:
            nucleus.append(i)
            mass += weights[i] / total
            if mass >= config.top_p:
                break
        kept = nucleus
    total = math.fsum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


def naive_draw(logits: list[float], config: SampleConfig, uniform: float) -> int:
    """The first token whose probability, added to those before it, exceeds the number."""
    total = 0.0
    for token, probability in enumerate(naive_probabilities(logits, config)):
        total += probability
        if total > uniform:
            return token
    raise AssertionError("no token drawn")
