"""One sequence over many processes, each holding a slice of it, on torch.distributed alone.

`ea_series` is the operator; a `Cut` tells layers and models that what they get is a slice. What
crosses a cut are states, and the last few tokens for a short convolution: bytes that do not depend
on the length of the sequence. Read `series`, then `exchange`.
"""

from eattn.distributed.agreement import DisagreementError
from eattn.distributed.cut import Cut
from eattn.distributed.series import ea_series

__all__ = ["Cut", "DisagreementError", "ea_series"]
