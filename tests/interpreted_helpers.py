"""Pytest plugin for processes with TRITON_INTERPRET=1: `-p interpreted_helpers --split fused`.

An interpreted kernel takes milliseconds per token, including tokens past the end of a tile.
Therefore chunks and tiles are short, so that few tokens fill several chunks, and of the tests for
every backend only those with small parameters are selected.
"""

import warnings

SHORT = 6  # tokens in a chunk
LONGEST = 40  # largest B * L of a test's parameter `shape`
MAX_TERMS = 65  # larger grids do not run on Triton
TOO_LONG = {  # tests with thousands of tokens or dozens of random calls
    "test_later_token_changes_no_earlier_bit_across_chunks",
    "test_number_of_threads_does_not_change_any_bit",
    "test_chunked_equals_parallel",
    "test_far_keys_give_bounded_values_and_finite_gradients",
    "test_many_queries_far_from_keys_have_finite_gradients",
    "test_long_sums_stay_accurate",
    "test_packed_equals_padded_equals_separate",
}
SELECTED = {  # parameters of longer tests
    "test_later_token_changes_no_earlier_bit": {"token": 16},
    "test_every_number_of_terms_matches_reference": {"causal": True},
    "test_near_keys_match_reference": {"size": 1.0, "share": 1.0},
    "test_one_small_key_among_large_keys_matches_reference": {"small_at": 20},
    "test_opcheck_passes": {"with_": "mask state"},
    "test_queries_and_keys_of_any_size_match_reference": {"q_size": 100},
    "test_output_lies_between_smallest_and_largest_value": {"scale": 6.0},
    "test_queries_and_keys_beyond_the_reach_are_clamped": {"excess": 3e38},
    "test_masked_tokens_change_no_bit": {"with_": "packed mask"},
}


def pytest_addoption(parser):
    parser.addoption("--split", choices=["chunks", "fused"], default="chunks")


def pytest_configure(config):
    from eattn.ops.triton import configs

    configs.SHORTEST = configs.LONGEST = SHORT
    configs.MERGE = configs.Config(1, 2)
    configs.CHOICES = configs.DECAY_CHOICES = {33: (configs.MERGE,)}
    configs.WIDE = configs.Config(1, 2, channels=4)
    if config.getoption("--split") == "fused":
        configs.WARPS = 1  # one warp fills the GPU: every forward is a single pass
    # The interpreter uses NumPy, which warns about NaN and about calls of older Triton versions.
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning")
    scalars = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
    config.addinivalue_line("filterwarnings", scalars)
    warnings.simplefilter("ignore", RuntimeWarning)


def is_small(item):
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    B, L, _ = parameters.get("shape", (1, 1, 1))
    selected = SELECTED.get(item.originalname, {})
    fits = all(parameters[name] == value for name, value in selected.items())
    fits &= getattr(parameters.get("expansion"), "terms", 1) <= MAX_TERMS
    return fits and B * L <= LONGEST and item.originalname not in TOO_LONG


def pytest_collection_modifyitems(config, items):
    config.hook.pytest_deselected(items=[item for item in items if not is_small(item)])
    items[:] = [item for item in items if is_small(item)]
