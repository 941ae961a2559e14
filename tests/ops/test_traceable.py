"""The operator for torch.export, run without exporting, against the reference."""

import pytest
import torch
from op_helpers import EVERY_EXPANSION, Answer, Case, assert_near, make, oracle, unshifted

from eattn import Quadrature, Taylor, ea_series
from eattn.ops import reference, traceable

expansions = pytest.mark.parametrize("expansion", EVERY_EXPANSION, ids=str)


@pytest.fixture
def exporting(monkeypatch):
    monkeypatch.setattr(traceable, "exporting", lambda: True)


@torch.no_grad()
def check(case: Case, want: Answer) -> None:
    """Compare y and the final state of a float64 case; the program has no backward."""
    y, state = ea_series(
        case.q,
        case.k,
        case.v,
        expansion=case.expansion,
        causal=case.causal,
        key_mask=case.key_mask,
        log_decay=case.log_decay,
        state=case.state,
        return_state=True,
    )
    state = state if case.log_decay is None else unshifted(state)
    assert_near(y, want.y, 1e-10, "y")
    for name, x in want.state.tensors().items():
        torch.testing.assert_close(getattr(state, name), x, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.usefixtures("exporting")
@expansions
@pytest.mark.parametrize("with_", ["", "decay", "gate", "mask state decay", "mask state gate"])
def test_causal_sums_match_reference(expansion, with_):
    for L in (1, 2, 16, 17, 150):  # one token, and one past a chunk of 16
        case = make((2, L, 3), expansion=expansion, causal=True, with_=with_)
        check(case, oracle(case))


@pytest.mark.usefixtures("exporting")
@pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(9)], ids=str)
def test_nan_gate_affects_its_channel_from_its_token_on(expansion):
    case = make((1, 50, 3), expansion=expansion, causal=True, with_="gate")
    options = dict(expansion=expansion, causal=True)
    clean = ea_series(case.q, case.k, case.v, **options, log_decay=case.log_decay)
    case.log_decay[:, 20, 1] = torch.nan
    y = ea_series(case.q, case.k, case.v, **options, log_decay=case.log_decay)
    assert torch.equal(y[:, :20], clean[:, :20]) and y[:, 20:, 1].isnan().all()
    assert torch.equal(y[..., [0, 2]], clean[..., [0, 2]])


@pytest.mark.usefixtures("exporting")
def test_large_keys_and_strong_gates_stay_accurate_in_float32():
    q, v = torch.randn(2, 1, 200, 3).unbind()
    k, gate = 300 * torch.randn(1, 200, 3), -1e4 * torch.rand(1, 200, 3)
    y = ea_series(q, k, v, causal=True, log_decay=gate)
    wide = (x.double() for x in (q, k, v, gate))
    want, _ = reference.ea_decayed(*wide, expansion=Taylor(6))
    assert_near(y, want, 1e-3, "y")
