"""`eattn demo` with a plan of seconds, as a program: `python small_demo.py --out FOLDER`."""

import signal
import sys

from eattn import cli
from paper.bench import block, op
from paper.bench.step import SUM
from paper.demo import main
from paper.demo.stages import Plan
from paper.reproduce import fig5, table3


def plan(order: int = 6) -> Plan:
    """Every part of the real one, as small as it can be."""
    return Plan(
        training=table3.Plan(sets=("JapaneseVowels",), protocols=("clean",), seeds=1, epochs=0.03),
        operator=op.Plan(
            shape=(1, 64, 64),
            order=order,
            rounds=2,
            slow_rounds=1,
            lengths=(32, 64, 128),
            orders=(2, 6),
            series=(1, 1024, 4),
            calls=2,
            peaks=(),
        ),
        step=block.Plan(mixers=(SUM, "ea-6"), causal=(), lengths=(16,), dim=48, budget=0.1),
        decoding=fig5.Plan(
            mixers=("ea-6", "sa"),
            batches=(1,),
            positions=(16, 32),
            prompts=(16,),
            chunk=8,
            tokens=4,
            burst=2,
            dim=48,
            depth=1,
        ),
    )


if __name__ == "__main__":
    # A shell that starts something in the background lets it ignore what is sent here on purpose.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main.Plan = plan
    sys.exit(cli.main(["demo", *sys.argv[1:]]))
