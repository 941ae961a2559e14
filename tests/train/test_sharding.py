"""What an optimiser keeps of each weight, from a checkpoint in parts back to where it is used."""

import torch
from torch import nn

from eattn.train import sharding


def test_steps_come_to_the_device_of_the_weights_where_the_optimiser_wants_them_there():
    """As a fused one on a card does; a weight that had no slots has none."""
    model = nn.Linear(2, 3, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, capturable=True)
    saved = {"step": torch.tensor(4.0), "exp_avg": torch.ones(3, 2), "exp_avg_sq": torch.ones(3, 2)}
    sharding.fill_slots(model, optimizer, {"weight": saved, "bias": {}})
    held = optimizer.state[model.weight]
    assert {name: x.device.type for name, x in held.items()} == dict.fromkeys(saved, "meta")
    assert not optimizer.state[model.bias]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_slots_go_out_and_in_as_they_are():
    models = [nn.Linear(2, 3) for _ in range(2)]
    first, second = (torch.optim.AdamW(model.parameters(), fused=True) for model in models)
    models[0](torch.ones(1, 2)).sum().backward()
    first.step()
    saved = sharding.slots(models[0], first)
    sharding.fill_slots(models[1], second, saved)
    found = sharding.slots(models[1], second)
    assert found.keys() == saved.keys() == {"weight", "bias"}
    for name, slots in saved.items():
        assert slots.keys() == found[name].keys()
        assert all(torch.equal(x, found[name][key]) for key, x in slots.items())
