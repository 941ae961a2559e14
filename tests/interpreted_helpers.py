"""A pytest plugin for processes where TRITON_INTERPRET=1: `-p interpreted_helpers --cut fused`.

Each token costs an interpreted kernel milliseconds, so chunks are short, a few tokens are many of
them, and tiles hardly longer than a token: what is past the end costs as much. Of the matrix of
every backend it keeps what is small, and of tests on longer sequences a few parameters.
"""

import warnings

SHORT = 6  # tokens in a chunk
LONGEST = 40  # tokens, of all rows, where a test has a shape as a parameter
TOO_LONG = {  # thousands of tokens, or dozens of random calls
    "test_a_later_token_changes_no_earlier_bit_across_chunks",
    "test_any_number_of_threads_gives_the_same_bits",
    "test_chunked_equals_parallel",
    "test_farther_keys_leave_values_between_theirs_and_finite_gradients",
    "test_gradients_of_many_queries_far_from_all_keys_are_finite",
    "test_long_sums_stay_accurate",
    "test_packed_equals_padded_equals_alone",
}
SOME = {
    "test_a_later_token_changes_no_earlier_bit": {"token": 16},
    "test_every_number_of_terms_matches_reference": {"causal": True},
    "test_keys_up_to_9_away_have_their_weight_and_gradient": {"size": 1.0, "distance": 9.0},
    "test_one_small_key_among_large_ones": {"small_at": 20},
    "test_opcheck_passes": {"with_": "mask state"},
    "test_queries_and_keys_of_all_sizes": {"q_size": 100},
    "test_the_output_lies_between_the_least_and_the_greatest_value": {"scale": 6.0},
    "test_queries_and_keys_beyond_the_reach_are_clamped": {"far": 3e38},
    "test_what_is_behind_the_mask_changes_nothing": {"with_": "packed mask"},
}


def pytest_addoption(parser):
    parser.addoption("--cut", choices=["chunks", "fused"], default="chunks")


def pytest_configure(config):
    from eattn.ops.triton import configs

    configs.SHORTEST = configs.LONGEST = SHORT
    configs.MERGE = configs.Config(1, 2)
    configs.CHOICES = {33: (configs.MERGE,)}
    if config.getoption("--cut") == "fused":
        configs.WARPS = 1  # one is enough: every forward is a single pass
    # NumPy, in the place of a GPU, warns when it makes a NaN, and about how older Tritons use it.
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning")
    scalars = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
    config.addinivalue_line("filterwarnings", scalars)
    warnings.simplefilter("ignore", RuntimeWarning)


def is_small(item):
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    B, L, _ = parameters.get("shape", (1, 1, 1))
    some = SOME.get(item.originalname, {})
    kept = all(parameters[name] == value for name, value in some.items())
    return kept and B * L <= LONGEST and item.originalname not in TOO_LONG


def pytest_collection_modifyitems(config, items):
    config.hook.pytest_deselected(items=[item for item in items if not is_small(item)])
    items[:] = [item for item in items if is_small(item)]
