"""The Python side of the CPU kernels: the argument struct, and instruction sets."""

import re
from pathlib import Path

import pytest

from eattn.ops import native

installed = pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))


def test_arguments_have_the_order_of_the_cpp_struct():
    source = (Path(native.__file__).parent / "native" / "args.h").read_text()
    body = re.search(r"struct EattnArgs \{(.*?)\n\};", source, re.DOTALL)[1]
    body = re.sub(r"//.*", "", body)
    names = re.findall(r"\b(\w+)(?=[,;])", body)
    assert names == [*native._VIEWS, *native._POINTERS, *native._NUMBERS]


@installed
def test_every_instruction_set_is_usable_or_gives_a_reason():
    assert native.ISAS["baseline"] is None
    for isa, why_not in native.ISAS.items():
        assert why_not in (None, f"this CPU has no {isa}")
        assert native.unavailable(isa) == why_not
    assert native.unavailable("avx1024") == "the kernels were not built for avx1024"
    assert "baseline" in native.describe()
