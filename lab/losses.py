"""The next-token loss that forward returns; `lab.evaluation` has the loss of the answers."""

from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from lab.shapes import Logits, PositionMask, Tokens


def check_loss(logits: Logits, tokens: Tokens, d_vocab: int, per_token: bool) -> None:
    """Raise ValueError unless the logits predict at least one of the tokens."""
    if logits.shape[2] < d_vocab:
        raise ValueError(
            f"d_vocab_out must be at least d_vocab = {d_vocab} for a loss of the next token, "
            f"got {logits.shape[2]}; compute the loss from the logits"
        )
    if tokens.shape != logits.shape[:2]:
        raise ValueError(
            f"tokens must be of shape {list(logits.shape[:2])}, one for each position of input, "
            f"got {list(tokens.shape)}"
        )
    if not (per_token or (tokens.shape[0] and tokens.shape[1] > 1)):
        raise ValueError(
            "a loss needs at least 1 sequence of at least 2 tokens, "
            f"got shape {list(tokens.shape)}: there is no next token to predict"
        )


def next_token_loss(
    logits: Logits,
    tokens: Tokens,
    real: PositionMask | None = None,
    per_token: bool = False,
) -> Tensor:
    """Return the mean of -ln p(next token), or [batch, pos - 1] of it, in nats.

    If a token or its successor is padding, the loss is 0 and does not count.
    """
    losses = F.cross_entropy(
        rearrange(logits[:, :-1], "batch pos d_vocab -> batch d_vocab pos"),
        tokens[:, 1:],
        reduction="none",
    )
    if real is None:
        return losses if per_token else losses.mean()
    counts = real[:, 1:] & real[:, :-1]
    losses = losses.masked_fill(~counts, 0.0)
    return losses if per_token else losses.sum() / counts.sum()
