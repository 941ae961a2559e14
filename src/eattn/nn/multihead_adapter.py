"""Replace `torch.nn.MultiheadAttention` in existing models by any mixer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from eattn._checks import check_bool
from eattn.nn.base import Mixer
from eattn.nn.registry import make_mixer, without_decay


def replace_attention(
    model: nn.Module,
    mixer: str | Callable[[str, nn.MultiheadAttention], Mixer | None] = "ea-6",
    *,
    causal: bool = False,
) -> int:
    """Replace every `nn.MultiheadAttention` in `model` by a mixer, in place.

    The mixers have new weights and need training.

    Parameters
    ----------
    model : nn.Module
        Model that contains the attention layers.
    mixer : str or callable, default "ea-6"
        Name that `make_mixer` accepts, for mixers of the same width and number of heads; or a
        function `(name, module) -> Mixer` that returns None to keep a layer.
    causal : bool, default False
        Make self-attention causal, for models that are called with a causal mask. Cross-attention
        in an `nn.TransformerDecoderLayer` and the encoder of an `nn.Transformer` stay non-causal,
        and their mixers have no `+decay` or `+gate`. Cannot be combined with a function.

    Returns
    -------
    count : int
        Number of layers replaced.

    Examples
    --------
    >>> layer = nn.TransformerEncoderLayer(64, 8, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, num_layers=6)
    >>> replace_attention(model, "ea-6")
    6
    >>> layer = nn.TransformerDecoderLayer(64, 8, batch_first=True)
    >>> replace_attention(nn.TransformerDecoder(layer, num_layers=2), "ea-6", causal=True)
    4
    """
    if check_bool("causal", causal) and not isinstance(mixer, str):
        raise ValueError(
            "causal=True needs the name of a mixer: a function decides on its own whether a mixer"
            " is causal"
        )
    if isinstance(model, nn.MultiheadAttention):
        raise ValueError(
            "model must contain nn.MultiheadAttention, got such a layer, which cannot replace"
            " itself: use MultiheadAdapter"
        )
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)]
    count, full = 0, _non_causal(model)
    for name, old in found:
        if isinstance(mixer, str):
            if not old.embed_dim == old.kdim == old.vdim:
                raise ValueError(
                    f"{name} must have kdim = vdim = embed_dim = {old.embed_dim} to be replaced,"
                    f" got kdim = {old.kdim} and vdim = {old.vdim}"
                )
            options: Any = dict(heads=old.num_heads, causal=causal and old not in full)
            chosen = without_decay(mixer) if causal and old in full else mixer
            new: Mixer | None = make_mixer(chosen, old.embed_dim, **options)
        else:
            new = mixer(name, old)
        if new is None:
            continue
        new.to(old.out_proj.weight)
        parent, _, attribute = name.rpartition(".")
        adapter = MultiheadAdapter(new, batch_first=old.batch_first)
        setattr(model.get_submodule(parent), attribute, adapter.train(old.training))
        count += 1
    for module in model.modules():
        if count and isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # mixers take no nested tensors
    return count


def _non_causal(model: nn.Module) -> set[nn.Module]:
    """Return the modules that stay non-causal in a causal model."""
    full: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.TransformerDecoderLayer):
            full.add(module.multihead_attn)
        elif isinstance(module, nn.Transformer):
            full.update(module.encoder.modules())
    return full


class MultiheadAdapter(nn.Module):
    """A mixer with the call signature of `nn.MultiheadAttention`.

    Parameters
    ----------
    mixer : Mixer
        Mixer to call. Cross-attention requires an `ElementwiseAttention`.
    batch_first : bool, default True
        Inputs and outputs are [B, L, D] instead of [L, B, D].

    Examples
    --------
    >>> from eattn.nn import ElementwiseAttention
    >>> layer = nn.TransformerEncoderLayer(64, 8, batch_first=True)
    >>> layer.self_attn = MultiheadAdapter(ElementwiseAttention(64))
    >>> layer(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    """

    # nn.TransformerEncoderLayer reads these attributes; the values disable its fused path, which
    # would compute softmax attention from our weights.
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
        """Attend from `query` to `key`.

        Parameters
        ----------
        query : Tensor, shape (B, L, D) or (L, B, D)
            Tokens that attend.
        key : Tensor, shape (B, Lk, D) or (Lk, B, D)
            Tokens to attend to. If it is not `query` itself, this is cross-attention.
        value : Tensor
            Must be `key`, as the mixer projects keys and values from the same tokens.
        key_padding_mask : Tensor, shape (B, Lk), optional
            Padding: True in a bool mask, -inf in a float mask.
        need_weights, average_attn_weights : bool
            Ignored, as mixers have no attention weights.
        attn_mask : Tensor, shape (L, L), optional
            Must be the causal mask, and the mixer must be causal.
        is_causal : bool, default False
            Whether the mask is causal; the mixer must be causal then.

        Returns
        -------
        y : Tensor, shape (B, L, D) or (L, B, D)
        weights : None
        """
        if value is not key:
            raise ValueError("value must be key: the mixer projects both from the same tokens")
        self._check_causal(attn_mask, is_causal)
        options: dict[str, Any] = {}
        if key_padding_mask is not None:
            options["key_mask"] = _visible(key_padding_mask)
        if key is not query:
            options["context"] = self._swap(key)
        return self._swap(self.mixer(self._swap(query), **options)), None

    def _swap(self, x: Tensor) -> Tensor:
        """Convert between the caller's layout and [B, L, D]."""
        return x if self.batch_first else x.transpose(0, 1)

    def _check_causal(self, attn_mask: Tensor | None, is_causal: bool) -> None:
        """Raise unless the mask is what the mixer applies anyway."""
        if not self.mixer.causal:
            if is_causal or attn_mask is not None:
                raise ValueError(
                    "attn_mask and is_causal need a mixer built with causal=True, as by"
                    " replace_attention(model, name, causal=True)"
                )
        elif attn_mask is not None:
            visible = _visible(attn_mask)
            if visible.dim() != 2 or not torch.equal(visible, torch.ones_like(visible).tril()):
                raise ValueError(
                    "attn_mask must be the causal mask [L, L], the only one a mixer can apply; got"
                    f" a different mask of shape {tuple(attn_mask.shape)}"
                )


def _visible(mask: Tensor) -> Tensor:
    """Convert a PyTorch mask, in which True or -inf is masked, to one in which True is valid."""
    return ~mask if mask.dtype == torch.bool else mask == 0
