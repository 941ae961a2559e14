"""Sequence parallelism: each rank of a process group holds one shard of a sequence.

`ea_series` is the operator on shards. Inside `sequence_parallel`, layers and language models treat
their input as a shard. Ranks exchange states, and the last few tokens for a short convolution, so
the traffic does not depend on the length of the sequence.
"""

from eattn.distributed.agreement import DisagreementError
from eattn.distributed.context import Shard, current_shard, sequence_parallel
from eattn.distributed.series import ea_series

__all__ = ["DisagreementError", "Shard", "current_shard", "ea_series", "sequence_parallel"]
