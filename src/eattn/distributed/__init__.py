"""One sequence over many processes, each holding a shard of it, on torch.distributed alone.

`ea_series` is the operator; inside `sequence_parallel` layers and language models know that their
input is a shard. Ranks exchange states, and the last few tokens for a short convolution: bytes that
do not depend on the length of the sequence. Read `series`, then `exchange`.
"""

from eattn.distributed.agreement import DisagreementError
from eattn.distributed.context import Shard, current_shard, sequence_parallel
from eattn.distributed.series import ea_series

__all__ = ["DisagreementError", "Shard", "current_shard", "ea_series", "sequence_parallel"]
