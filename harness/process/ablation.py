"""The defences by name, so that each can be switched off and shown to matter.

Only `python run.py selftest --ablate` does so: the set travels from the Request to the engine, the
judge and the worker as an argument. No environment variable, manifest or message of a worker
reaches it.
"""

from __future__ import annotations

from enum import Enum


class Defence(str, Enum):
    """One thing that stops at least one cheater of tests/corpus/cheaters."""

    FRESH_INPUTS = "fresh_inputs"  # no value is seen twice, seeds are secret
    OWN_INPUTS = "own_inputs"  # no two entrants are asked the same
    VERIFY_EVERY_CALL = "verify_every_call"  # also while the clock runs
    CONTRACT = "contract"  # max|diff| against SDPA
    RELATIVE_ERROR = "relative_error"  # L2 against float64 decides the class
    FINITE = "finite"  # NaN and infinity are asked for by name
    STRESS = "stress"  # odd arguments, lengths and values
    INPUT_DIGEST = "input_digest"  # inputs are compared after the burst
    OUTPUT_TYPE = "output_type"  # a plain tensor of the right shape, dtype and device
    OUTPUT_COPIED = "output_copied"  # fixed right behind the calls, on their stream
    OUTPUT_SAMPLED = "output_sampled"  # words of it are read first, and what is copied must agree
    TWO_CLOCKS = "two_clocks"  # the worker's times against the judge's
    QUIET_GPU = "quiet_gpu"  # nobody's kernels run in another's turn
    BURST_MEAN = "burst_mean"  # the mean of a burst, not its best call
    FIXED_COUNTS = "fixed_counts"  # slow entrants get as many samples as fast ones
    STRICT_WIRE = "strict_wire"  # a worker cannot say PASSED
    MISSING_IS_FAILURE = "missing_is_failure"  # an exit code is not evidence
    SANDBOX = "sandbox"  # Landlock, seccomp, capabilities, limits
    CLEAN_ENVIRONMENT = "clean_environment"  # allow-listed variables
    ORPHAN_SWEEP = "orphan_sweep"  # daemons end with the turn


Off = frozenset[Defence]
NOTHING_OFF: Off = frozenset()


def to_argument(off: Off) -> str:
    """The set as one command-line word."""
    return ",".join(sorted(defence.value for defence in off))


def from_argument(text: str) -> Off:
    """The set back from its word."""
    return frozenset(Defence(name) for name in text.split(",") if name)
