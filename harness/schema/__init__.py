"""The nouns of the house. All frozen; each forbids the states that must not exist.

Suite ─ holds ─ Case            what is measured
Manifest ─ describes ─ Entrant  who is measured
Machine                         where
Burst                           one sample: K calls on K secret inputs, two clocks, one verdict each
Result                          one (entrant, case) of one run; a time exists only where it PASSED

These files know nobody: they import the standard library and pydantic only.
"""

from harness.schema.common import (
    BLAMELESS,
    CLAIM_PCT,
    CONFESSIONS,
    LEAST_MS,
    MOST_BLOCKS,
    MOST_CALLS,
    MOST_LINE_BYTES,
    MOST_NAME,
    MOST_PAUSES,
    Dtype,
    Finite,
    Frozen,
    Kind,
    Status,
    gate_delay_ms,
    is_name,
)
from harness.schema.entrant import Claims, Entrant, Manifest, Needs
from harness.schema.result import (
    MOST_SLACK_PCT,
    Energy,
    Error,
    Front,
    Machine,
    Pause,
    Result,
    Sample,
    Slack,
    Speedup,
    Stopping,
    Sustained,
    Telemetry,
    times_ms,
)
from harness.schema.suite import HIDDEN_PREFIX, MOST_SUSTAINED_S, Case, Limits, Suite, is_hidden
