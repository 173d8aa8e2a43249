"""The defences by name; each stops at least one cheater of tests/corpus/cheaters.

Nothing of what a run consists of knows these names: `selftest --ablate` puts other functions in
place of a defence's own from outside (harness/cli/selftest/without.py).
"""

from __future__ import annotations

from enum import Enum


class Defence(str, Enum):
    """One thing that stops somebody whom nothing else stops."""

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


Defences = frozenset[Defence]


def to_word(defences: Defences) -> str:
    """The set as one command-line word."""
    return ",".join(sorted(defence.value for defence in defences))


def from_word(text: str) -> Defences:
    """The set back from its word."""
    return frozenset(Defence(name) for name in text.split(","))
