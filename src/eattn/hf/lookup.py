"""Prompt lookup whose drafts are as long as the text is predictable."""

from typing import Any

from torch import Tensor
from transformers.generation.candidate_generator import CandidateGenerator

SHORTEST = 4  # tokens of a draft; on a CPU, reading 2 or 3 takes as long as reading 4
MAX_PAUSE = 128  # tokens
USEFUL = 2  # accepted tokens of a draft that is worth its time


class AdaptiveLookup(CandidateGenerator):
    """Prompt lookup that drafts fewer tokens after a rejection, and none for a while.

    Reading a draft takes time even if it is rejected, and every word occurs again sooner or later.
    After a draft that was accepted entirely, the next one is twice as long. After another, it has
    one token more than were accepted, but at least 4. If no token was accepted, the next token is
    generated without a draft; after further such drafts the next 2, 4, ... up to 128 tokens, until
    two tokens of a draft are accepted. Drafts do not change the generated text.

    Parameters
    ----------
    lookup : PromptLookupCandidateGenerator
        Lookup with the greatest number of tokens of a draft.
    """

    def __init__(self, lookup: Any) -> None:
        self.lookup = lookup
        self.limit: int = lookup.num_output_tokens
        self.pause = 1  # tokens without drafts after the next rejection
        self.wait = 0  # tokens without drafts from now on

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Return the text with a draft, and None for its logits."""
        if self.wait:
            return input_ids, None
        found: tuple[Tensor, None] = self.lookup.get_candidates(input_ids)
        return found

    def update_candidate_strategy(
        self, input_ids: Tensor, scores: Tensor, num_matches: int
    ) -> None:
        """Choose the length of the next draft; `scores` are [B, drafts + 1, vocabulary]."""
        drafts = scores.shape[1] - 1
        if self.wait:
            self.wait -= 1
        elif drafts and not num_matches:
            self.wait, self.pause = self.pause, min(2 * self.pause, MAX_PAUSE)
            self.lookup.num_output_tokens = min(SHORTEST, self.limit)
        elif drafts:
            longer = 2 * num_matches if num_matches == drafts else num_matches + 1
            self.lookup.num_output_tokens = min(max(longer, SHORTEST), self.limit)
            if num_matches >= USEFUL:
                self.pause = 1
