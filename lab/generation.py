"""Sampling from a model, token by token, with a key/value cache.

What the next token's probabilities are under a SampleConfig, and the loop that draws from them.
Prompts in words belong to the tasks' vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lab.config import SampleConfig, require, require_whole
from lab.gates import GateTensors, HeadGates
from lab.kv_cache import KeyValueCache
from lab.model import HookedGPT
from lab.shapes import Tokens

Drawn = Int[Tensor, " batch"]


def generate(
    model: HookedGPT,
    tokens: Tokens,
    config: SampleConfig,
    max_new_tokens: int,
    gates: HeadGates | GateTensors | None = None,
    stop_ids: Sequence[int] = (),
) -> Int[Tensor, "batch new_pos"]:
    """Return the prompts with the drawn tokens behind them; see `stream`."""
    drawn = stream(model, tokens, config, max_new_tokens, gates, stop_ids)
    return torch.cat([tokens, torch.stack(list(drawn), dim=1)], dim=1)


def stream(
    model: HookedGPT,
    tokens: Tokens,
    config: SampleConfig,
    max_new_tokens: int,
    gates: HeadGates | GateTensors | None = None,
    stop_ids: Sequence[int] = (),
) -> Iterator[Drawn]:
    """Yield the next token of every prompt as soon as it is drawn.

    The draws come from a generator of this call, on the CPU: they are the same on every device,
    leave the global generator alone and are not disturbed by other threads.

    Args:
        model: The model.
        tokens: Prompts of one length (see `stack_prompts`).
        config: Temperature, top-k, top-p and seed.
        max_new_tokens: Draw at most so many tokens.
        gates: Interventions on heads, for the prompt and every drawn token; positions are those of
            the whole sequence.
        stop_ids: A sequence ends with the first of these; in a batch it repeats it until all others
            have ended.

    Raises:
        ValueError: At once, not at the first token: an empty prompt, ids outside the vocabulary, or
            more tokens than fit in n_ctx.
    """
    check_request(model, tokens, max_new_tokens, stop_ids)
    require(config.seed < 2**64, "seed", "below 2**64", config.seed)
    if isinstance(gates, HeadGates):
        gates = gates.tensors(model)
    return _steps(model, tokens, config, max_new_tokens, gates, tuple(stop_ids))


def _steps(
    model: HookedGPT,
    tokens: Tokens,
    config: SampleConfig,
    max_new_tokens: int,
    gates: GateTensors | None,
    stop_ids: tuple[int, ...],
) -> Iterator[Drawn]:
    generator = torch.Generator().manual_seed(config.seed)
    stops = torch.tensor(stop_ids, dtype=torch.int64)
    stopped = torch.zeros(len(tokens), dtype=torch.bool)
    last = torch.zeros(len(tokens), dtype=torch.int64)
    cache = KeyValueCache(model.config.n_layers)
    new = tokens.to(model.W_E.device)
    for _ in range(max_new_tokens):
        # Not around the yield: what the consumer does between two tokens is its own business.
        with torch.no_grad():
            logits = model(new, gates=gates, kv_cache=cache)[:, -1]
        last = torch.where(stopped, last, draw(logits, config, generator))
        stopped |= torch.isin(last, stops)
        yield last.to(tokens.device)
        if stopped.all():
            return
        new = last.unsqueeze(1).to(new.device)


def draw(
    logits: Float[Tensor, "batch d_vocab"], config: SampleConfig, generator: torch.Generator
) -> Drawn:
    """Draw one token a row, on the CPU; temperature 0 takes the largest logit.

    One uniform number a row falls into one token's share of the cumulated probabilities: on 50,000
    tokens 18 times faster than torch.multinomial, which draws a number for every token.
    """
    if config.temperature == 0:
        return _readable(logits).argmax(dim=-1)
    upto = next_token_probabilities(logits, config).cumsum(dim=-1)
    total = upto[:, -1:]
    uniform = torch.rand(total.shape, dtype=torch.float64, generator=generator)
    # uniform is at most 1 - 2**-53: the product stays below the total even when rounded.
    return torch.searchsorted(upto, uniform * total, right=True).squeeze(1)


def next_token_probabilities(
    logits: Float[Tensor, "*batch d_vocab"], config: SampleConfig
) -> Float[Tensor, "*batch d_vocab"]:
    """Return what the next token is drawn from: float64, on the CPU, over the whole vocabulary.

    softmax(logits / temperature); then only the top_k most probable are kept; then the fewest whose
    share of what is left reaches top_p. Kept tokens are renormalised, all others are 0. Between
    equals the lower id counts as more probable. Temperature 0 is 1 on the largest logit.

    Raises:
        ValueError: The logits are not numbers.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> next_token_probabilities(logits, SampleConfig(temperature=2.0)).round(decimals=3).tolist()
    [0.455, 0.276, 0.167, 0.102]
    """
    logits = _readable(logits)
    if config.temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).double()
    top_k = logits.shape[-1] if config.top_k is None else config.top_k
    top_p = 1.0 if config.top_p is None else config.top_p
    if top_k >= logits.shape[-1] and top_p == 1.0:
        return _softmax(logits, config.temperature)
    # Logits rather than probabilities are ranked: different logits can have equal probabilities.
    ranked, ids = logits.sort(dim=-1, descending=True, stable=True)
    ranked, ids = ranked[..., :top_k], ids[..., :top_k]
    kept = _softmax(ranked, config.temperature)
    if top_p < 1.0:
        before = F.pad(kept.cumsum(dim=-1)[..., :-1], (1, 0))
        kept = kept.where(before < top_p, 0.0)
        kept = kept / kept.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(-1, ids, kept)


def _softmax(
    logits: Float[Tensor, "*batch candidate"], temperature: float
) -> Float[Tensor, "*batch candidate"]:
    # The largest is brought to 0 first: a tiny temperature then gives -inf, never inf - inf.
    return ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)


def stack_prompts(prompts: Sequence[Int[Tensor, "_ _"]]) -> Tokens:
    """Join prompts of one length into a batch.

    Raises:
        ValueError: There is none, or their lengths differ.
    """
    lengths = sorted({prompt.shape[1] for prompt in prompts})
    if len(lengths) != 1:
        got = " and ".join(map(str, lengths)) or "no prompt"
        raise ValueError(
            f"prompts in a batch must be of equal length (there is no padding), got {got}; "
            "generate from them one at a time"
        )
    return torch.cat(list(prompts))


def check_request(
    model: HookedGPT, tokens: Tokens, max_new_tokens: int, stop_ids: Sequence[int]
) -> None:
    """Raise ValueError unless the model can continue these prompts that far."""
    n_ctx, last_id = model.config.n_ctx, model.config.d_vocab - 1
    if 0 in tokens.shape:
        raise ValueError("prompt must have at least 1 token, got none")
    # On a GPU, an id outside the embedding ends the process' CUDA context: looked at beforehand.
    for what, ids in (("token ids", tokens), ("stop ids", torch.tensor(list(stop_ids)))):
        if ids.numel() and not 0 <= ids.min() <= ids.max() <= last_id:
            raise ValueError(
                f"{what} must be from 0 to {last_id}, got {ids.min().item()} to {ids.max().item()}"
            )
    require_whole("max_new_tokens", max_new_tokens, 1)
    room = n_ctx - tokens.shape[1]
    if max_new_tokens > room:
        fit = f"at most {room} new tokens fit" if room > 0 else "shorten the prompt"
        raise ValueError(
            f"prompt and new tokens must be at most n_ctx = {n_ctx}, "
            f"got {tokens.shape[1]} + {max_new_tokens}; {fit}"
        )


def _readable(logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch d_vocab"]:
    """Return the logits in float64 on the CPU, once each row is known to have a largest number."""
    logits = logits.detach().to("cpu", torch.float64)
    if not logits.amax(dim=-1).isfinite().all():
        raise ValueError(
            "logits must be finite numbers, got NaN or infinity; the model's weights have diverged"
        )
    return logits
