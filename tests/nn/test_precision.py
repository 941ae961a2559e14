"""Every mixer with autocast, bfloat16, copies and gradient checkpointing."""

import copy

import pytest
import torch
from mixer_helpers import MASKS, both_forms, differentiate, make, names, same, tokens
from torch.utils.checkpoint import checkpoint


@both_forms
def test_autocast_is_close_to_float32(name, causal):
    mixer, x = make(name, causal=causal).float(), tokens(3, 33).float().requires_grad_()
    valid = MASKS["holes"](33)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, key_mask=valid)
    got = torch.autograd.grad(y.float()[valid].square().sum(), [x, *mixer.parameters()])
    want = mixer(x, key_mask=valid)
    grads = torch.autograd.grad(want[valid].square().sum(), [x, *mixer.parameters()])
    assert (y - want).abs().max() < 0.03 * want.abs().max()
    for a, b in zip(got, grads, strict=True):
        assert (a - b).norm() <= 0.05 * (b.norm() + 0.1)


@names
@pytest.mark.parametrize(("grad", "first"), [(True, True), (False, False)])
def test_autocast_may_change_between_state_and_step(name, grad, first):
    mixer, x = make(name, causal=True).float(), tokens(2, 9).float()
    want = mixer(x)[:, -1].detach()
    with torch.set_grad_enabled(grad):
        with torch.autocast("cpu", torch.bfloat16, enabled=first):
            _, state = mixer(x[:, :8], return_state=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=not first):
            y_t, _ = mixer.step(x[:, 8], state)
    assert (y_t - want).abs().max() < 0.03 * want.abs().max()


@both_forms
def test_bfloat16_module_returns_bfloat16(name, causal):
    mixer, x, dtype = make(name, causal=causal), tokens(2, 33), torch.bfloat16
    narrow = copy.deepcopy(mixer).to(dtype)
    y = narrow(x.to(dtype))
    assert y.dtype == dtype
    error = (y.double() - mixer(x)).abs().max()
    assert error < 8 * torch.finfo(dtype).eps * (1 + mixer(x).abs().max())


@names
def test_mixer_survives_state_dict_and_deepcopy(name, tmp_path):
    mixer, x = make(name, causal=True), tokens(2, 5)
    assert torch.equal(copy.deepcopy(mixer)(x), mixer(x))
    torch.save(mixer.state_dict(), tmp_path / "weights.pt")
    other = make(name, causal=True, seed=9)
    assert not torch.equal(other(x), mixer(x))
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(other(x), mixer(x))


@both_forms
def test_gradient_checkpointing_changes_no_gradient(name, causal):
    mixer, x = make(name, causal=causal), tokens(2, 33).requires_grad_()
    again = checkpoint(mixer, x, use_reentrant=False)
    same(differentiate(mixer, x, again), differentiate(mixer, x, mixer(x)))
