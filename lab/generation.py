"""Sampling from a model, token by token, with a key/value cache.

It computes the next token's distribution under a SampleConfig, and samples from it in a loop.
The tasks' vocabulary converts prompts in words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.nn import functional as F

from lab.attention_reads import Observer
from lab.checks import require, require_whole
from lab.config import SampleConfig
from lab.decoding import Decoder
from lab.gates import GateTensors, HeadGates
from lab.inputs import checked_ids, checked_mask
from lab.kv_cache import KeyValueCache
from lab.model import GPT
from lab.prompts import Prompts, StopIds, prompt_mask, prompt_tokens, stop_tokens
from lab.shapes import GivenMask, PositionMask, Tokens

Drawn = Int[Tensor, " batch"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One sampled token of every sequence, and its logits."""

    tokens: Drawn
    """The drawn tokens; a sequence that has ended repeats its stop id."""
    logits: Float[Tensor, "batch d_vocab"]
    """Logits of the model, on its device."""
    config: SampleConfig
    """Sampling settings."""

    @property
    def probabilities(self) -> Float64[Tensor, "batch d_vocab"]:
        """The distribution that each token was sampled from, over the whole vocabulary."""
        return next_token_probabilities(self.logits, self.config)


def generate(
    model: GPT,
    tokens: Prompts,
    config: SampleConfig,
    max_new_tokens: int,
    gates: HeadGates | GateTensors | None = None,
    stop_ids: StopIds = (),
    *,
    attention_mask: GivenMask | None = None,
    observe: Observer | None = None,
) -> Int[Tensor, "batch new_pos"]:
    """Return the prompts, padding included, followed by the sampled tokens; see `steps`."""
    tokens = prompt_tokens(model, tokens)
    drawn = steps(
        model,
        tokens,
        config,
        max_new_tokens,
        gates,
        stop_ids,
        attention_mask=attention_mask,
        observe=observe,
    )
    return torch.cat([tokens, torch.stack([step.tokens for step in drawn], dim=1)], dim=1)


def steps(
    model: GPT,
    tokens: Prompts,
    config: SampleConfig,
    max_new_tokens: int,
    gates: HeadGates | GateTensors | None = None,
    stop_ids: StopIds = (),
    *,
    attention_mask: GivenMask | None = None,
    observe: Observer | None = None,
) -> Iterator[Step]:
    """Yield the next token of every prompt, with its logits, as soon as it is drawn.

    The draws come from a generator of this call, on the CPU: they are the same on every device,
    leave the global generator alone and are not disturbed by other threads. Hooks, gates and the
    observer act on the prompt and on every drawn token; the model's last norm and unembedding, and
    the hooks there, only ever see the last position. Edits of weights act from the next call on.

    Args:
        model: The model.
        tokens: Prompts of one length (see `left_padded`), as ids or, with a tokenizer, texts.
        config: Temperature, top-k, top-p and seed.
        max_new_tokens: Largest number of tokens to sample.
        gates: Interventions on heads, for the prompt and every drawn token; positions are those of
            the whole sequence.
        stop_ids: A sequence ends with the first of these ids, or texts of one token; in a batch it
            repeats it until all others have ended.
        attention_mask: True (or 1) at the tokens of the prompts, False at the padding before them,
            which changes nothing; None: no padding.
        observe: Called with (layer, AttentionReads) at every step.

    Raises:
        ValueError: At once, not at the first token: an empty prompt, ids outside the vocabulary,
            padding after a prompt, a bidirectional model, or more tokens than fit in n_ctx.
    """
    tokens, stops = prompt_tokens(model, tokens), stop_tokens(model, stop_ids)
    check_request(model, tokens, max_new_tokens, stops)
    require(config.seed < 2**64, "seed", "below 2**64", config.seed)
    real = checked_padding(tokens, prompt_mask(attention_mask))
    if isinstance(gates, HeadGates):
        gates = gates.tensors(model)
    # The last sampled token is never run through the model.
    reader = Reader(model, gates, observe, room=tokens.shape[1] + max_new_tokens - 1)
    return islice(_steps(reader, tokens, real, config, stops), max_new_tokens)


class Reader:
    """Runs the prompts, then token by token, on the fastest path that hooks and observers allow."""

    def __init__(
        self, model: GPT, gates: GateTensors | None, observe: Observer | None, *, room: int
    ) -> None:
        """Allocate room for the keys and values of `room` tokens of each sequence."""
        self.model, self.gates, self.observe = model, gates, observe
        self.cache = KeyValueCache(model.config.n_layers, room=room)
        self.decoder: Decoder | None = None

    @torch.no_grad()
    def logits(self, new: Tokens, real: PositionMask | None) -> Float[Tensor, "batch d_vocab"]:
        """Return the logits after the new tokens, and cache their keys and values."""
        if self.decoder is not None and self.decoder.applies():
            return self.decoder.step(new)[:, -1]
        logits = self.model(
            new,
            gates=self.gates,
            observe=self.observe,
            attention_mask=real,
            kv_cache=self.cache,
            last_only=True,
        )[:, -1]
        if self.decoder is None and self.observe is None:
            self.decoder = Decoder(self.model, self.cache, self.gates)
        return logits


def _steps(
    reader: Reader,
    tokens: Tokens,
    real: PositionMask | None,
    config: SampleConfig,
    stop_ids: tuple[int, ...],
) -> Iterator[Step]:
    generator = torch.Generator().manual_seed(config.seed)
    stops = torch.tensor(stop_ids, dtype=torch.int64)
    stopped = torch.zeros(len(tokens), dtype=torch.bool)
    last = torch.zeros(len(tokens), dtype=torch.int64)
    device = reader.model.device
    new = tokens.to(device)
    real = None if real is None else real.to(device)
    while not (stop_ids and stopped.all()):
        logits = reader.logits(new, real)
        drawn = draw(logits, config, generator)
        last = torch.where(stopped, last, drawn) if stop_ids else drawn
        yield Step(tokens=last.to(tokens.device), logits=logits, config=config)
        if stop_ids:
            stopped |= torch.isin(last, stops)
        new, real = last.unsqueeze(1).to(device), None


def draw(
    logits: Float[Tensor, "batch d_vocab"], config: SampleConfig, generator: torch.Generator
) -> Drawn:
    """Sample one token for each row, on the CPU; temperature 0 takes the largest logit.

    One uniform number for each row selects a token by the cumulated probabilities. With 50,000
    tokens this is 18 times faster than torch.multinomial, which draws a number for every token.
    """
    if config.temperature == 0:
        largest, drawn = logits.detach().max(dim=-1)
        _require_numbers(largest)
        return drawn.cpu()
    upto = next_token_probabilities(logits, config).cumsum(dim=-1)
    total = upto[:, -1:]
    uniform = torch.rand(total.shape, dtype=torch.float64, generator=generator)
    # uniform is at most 1 - 2**-53: the product stays below the total even when rounded.
    return torch.searchsorted(upto, uniform * total, right=True).squeeze(1)


def next_token_probabilities(
    logits: Float[Tensor, "*batch d_vocab"], config: SampleConfig
) -> Float[Tensor, "*batch d_vocab"]:
    """Return the distribution of the next token: float64, on the CPU, over the whole vocabulary.

    softmax(logits / temperature); then only the top_k most probable are kept; then the fewest whose
    share of these reaches top_p. Kept tokens are renormalised, all others are 0. Of equal
    probabilities, the lower id counts as higher. Temperature 0 gives 1 to the largest logit.

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
    # Logits, not probabilities, are ranked: different logits can round to equal probabilities.
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
    # The largest logit is shifted to 0 first: a tiny temperature then gives -inf, not inf - inf.
    return ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)


def left_padded(
    prompts: Sequence[Int[Tensor, " _"] | Sequence[int]], pad_id: int = 0
) -> tuple[Tokens, PositionMask]:
    """Join prompts of any lengths into a batch: (tokens, attention_mask).

    Args:
        prompts: Token ids of each prompt.
        pad_id: Id that pads shorter prompts on the left; it is masked.

    Raises:
        ValueError: There is no prompt, or an empty one.

    >>> left_padded([[5, 6, 7], [8]])[0].tolist()
    [[5, 6, 7], [0, 0, 8]]
    """
    lengths = [len(prompt) for prompt in prompts]
    if not lengths or min(lengths) == 0:
        raise ValueError(
            f"prompts must be one or more, of at least 1 token each, got lengths {lengths}"
        )
    longest = max(lengths)
    rows = [torch.as_tensor(prompt, dtype=torch.int64) for prompt in prompts]
    tokens = [F.pad(row, (longest - len(row), 0), value=pad_id) for row in rows]
    columns = torch.arange(longest, device=tokens[0].device)
    first = columns.new_tensor([longest - length for length in lengths])
    return torch.stack(tokens), columns >= first.unsqueeze(1)


def checked_padding(tokens: Tokens, mask: GivenMask | None) -> Bool[Tensor, "batch pos"] | None:
    """Return where the prompts' tokens are, None where there is no padding.

    Raises:
        ValueError: The mask is of another shape, has a token before padding, or a row of padding.
    """
    if mask is None:
        return None
    real = checked_mask(mask, batch=tokens.shape[0], n_pos=tokens.shape[1])
    if bool(real.all()):
        return None
    broken = ~real[:, -1] | (real[:, :-1] & ~real[:, 1:]).any(dim=1)
    if broken.any():
        row = int(broken.nonzero()[0])
        raise ValueError(
            "attention_mask must be 0 at padding before a prompt and 1 from its first token on, "
            f"got {real[row].int().tolist()} in row {row}; use lab.generation.left_padded"
        )
    return real


def check_request(model: GPT, tokens: Tokens, max_new_tokens: int, stop_ids: Sequence[int]) -> None:
    """Raise ValueError unless the model can continue these prompts that far."""
    n_ctx, last_id = model.config.n_ctx, model.config.d_vocab - 1
    if model.config.attention_dir != "causal":
        raise ValueError(
            "attention_dir must be 'causal' to generate token by token, "
            f"got {model.config.attention_dir!r}"
        )
    if model.config.vocab_out != model.config.d_vocab:
        raise ValueError(
            f"d_vocab_out must be d_vocab = {model.config.d_vocab} to read what was drawn, "
            f"got {model.config.vocab_out}"
        )
    checked_ids(tokens)
    if 0 in tokens.shape:
        raise ValueError("prompt must have at least 1 token, got none")
    # On a GPU, an id outside the embedding destroys the CUDA context, so it is checked here.
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


def _readable(logits: Float[Tensor, "*batch d_vocab"]) -> Float64[Tensor, "*batch d_vocab"]:
    """Return the logits in float64 on the CPU, after checking that they are finite."""
    # In this order, because some accelerators have no float64.
    logits = logits.detach().cpu().double()
    _require_numbers(logits.amax(dim=-1))
    return logits


def _require_numbers(largest: Float[Tensor, "*batch"]) -> None:
    """Raise ValueError unless each row's largest logit is a number."""
    if not largest.isfinite().all():
        raise ValueError(
            "logits must be finite numbers, got NaN or infinity; the model's weights have diverged"
        )
