"""The loss of the next token, as forward returns it; that of the answers is in `lab.evaluation`."""

from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from lab.shapes import Logits, PositionMask, Tokens


def check_loss(logits: Logits, tokens: Tokens, d_vocab: int, per_token: bool) -> None:
    """Raise ValueError unless these logits predict these tokens, at least one of them."""
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
            "a loss must be of 1 or more sequences of at least 2 tokens, "
            f"got shape {list(tokens.shape)}: nothing is predicted"
        )


def next_token_loss(
    logits: Logits,
    tokens: Tokens,
    real: PositionMask | None = None,
    per_token: bool = False,
) -> Tensor:
    """Return the mean of -ln p(next token), or [batch, pos - 1] of it, in nats.

    Where a token or its next one is padding the loss is 0 and does not count.
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
