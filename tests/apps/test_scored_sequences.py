"""Which rows of a person's prompts are scored."""

import pytest
import torch

from apps.scored_sequences import every_next_token
from apps.subject import Input


def test_prompts_of_one_token_have_nothing_to_score() -> None:
    tokens = torch.tensor([[3, 0], [4, 0]])
    real = torch.tensor([[True, False], [True, False]])
    with pytest.raises(
        ValueError, match=r"at least one prompt must have two tokens, got 2 prompts of"
    ):
        every_next_token(
            Input(sequences=None, attention_mask=real, n=2, description="two prompts"), tokens
        )
    with pytest.raises(ValueError, match="got 1 prompt of one token; give longer ones"):
        every_next_token(
            Input(sequences=None, attention_mask=None, n=1, description="one prompt"),
            tokens[:1, :1],
        )
    real[1, 1] = True
    scored = every_next_token(
        Input(sequences=None, attention_mask=real, n=2, description="two prompts"), tokens
    )
    assert scored.batch.loss_mask.tolist() == [[False, False], [True, False]]
