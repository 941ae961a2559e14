"""Any mixer in place of `torch.nn.MultiheadAttention`, in models that are already written."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from eattn.nn.base import Mixer
from eattn.nn.registry import make_mixer


def replace_attention(
    model: nn.Module,
    mixer: str | Callable[[str, nn.MultiheadAttention], Mixer | None] = "ea-6",
) -> int:
    """Put a mixer in the place of every `nn.MultiheadAttention` in `model`, and count them.

    `mixer` is a name that `make_mixer` knows, for non-causal mixers as wide as what they replace,
    or a function of the module's name and the module itself, that returns a mixer, or None to
    leave it. The new ones have new weights, and are to be trained.

    >>> layer = nn.TransformerEncoderLayer(64, 8, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, num_layers=6)
    >>> replace_attention(model, "ea-6")
    6
    """
    if isinstance(model, nn.MultiheadAttention):
        raise ValueError("model must contain the attention: a module cannot replace itself")
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)]
    count = 0
    for name, old in found:
        new = make_mixer(mixer, old.embed_dim) if isinstance(mixer, str) else mixer(name, old)
        if new is None:
            continue
        new.to(old.out_proj.weight)
        parent, _, attribute = name.rpartition(".")
        adapter = MultiheadAdapter(new, batch_first=old.batch_first)
        setattr(model.get_submodule(parent), attribute, adapter.train(old.training))
        count += 1
    for module in model.modules():
        if count and isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # its shortcut would feed the mixers nested tensors
    return count


class MultiheadAdapter(nn.Module):
    """Called as `nn.MultiheadAttention` is, answered by a mixer: (y, None).

    `key_padding_mask` may be bool, True where a token is padding, or float, -inf there. Of
    `attn_mask` only the causal one makes sense, and only to a causal mixer. A key that is not the
    query is cross-attention, which takes an `ElementwiseAttention`; its values come from the key.

    >>> from eattn.nn import ElementwiseAttention
    >>> layer = nn.TransformerEncoderLayer(64, 8, batch_first=True)
    >>> layer.self_attn = MultiheadAdapter(ElementwiseAttention(64))
    >>> layer(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    """

    # What nn.TransformerEncoderLayer asks before it takes its fused path, which would compute
    # softmax attention from our weights.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, mixer: Mixer, *, batch_first: bool = True) -> None:
        super().__init__()
        if not isinstance(mixer, Mixer):
            raise TypeError(f"mixer must be an eattn.nn.Mixer, got {type(mixer).__name__}")
        self.mixer = mixer
        self.batch_first = batch_first

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """y for query [B, L, D] over key [B, Lk, D], or [L, B, D]; there are no weights to give."""
        if value is not key:
            raise ValueError("value must be key: the mixer projects both from the same tokens")
        self._check_causal(attn_mask, is_causal)
        options: dict[str, Tensor] = {}
        if key_padding_mask is not None:
            options["key_mask"] = _visible(key_padding_mask)
        if key is not query:
            options["context"] = self._turn(key)
        return self._turn(self.mixer(self._turn(query), **options)), None

    def _turn(self, x: Tensor) -> Tensor:
        """Between [L, B, D] and [B, L, D], where the model puts time first."""
        return x if self.batch_first else x.transpose(0, 1)

    def _check_causal(self, attn_mask: Tensor | None, is_causal: bool) -> None:
        """A mask says what the mixer does by itself, or cannot be honoured."""
        if not self.mixer.causal:
            if is_causal or attn_mask is not None:
                raise ValueError("attn_mask needs a mixer made with causal=True")
        elif attn_mask is not None:
            seen = _visible(attn_mask)
            if seen.dim() != 2 or not torch.equal(seen, torch.ones_like(seen).tril()):
                raise ValueError(
                    "attn_mask must be the causal one, [L, L] open up to the diagonal;"
                    f" got another, of shape {tuple(attn_mask.shape)}"
                )


def _visible(mask: Tensor) -> Tensor:
    """Convert a mask of PyTorch (True or -inf: hidden) to ours (True: visible)."""
    return ~mask if mask.dtype == torch.bool else mask == 0
