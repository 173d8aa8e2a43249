"""Leaves every object in place and swaps `__code__` of the worker's own timing functions.

---
status: [TIME_CLAIM_REJECTED]
seen: SOL-ExecBench id() snapshots (a swapped __code__ leaves id unchanged)
defence: two_clocks
min_latency_ms: 25
"""

import gc
import time
import types

from right_answer import attention

SLOW_S = 0.03
NAMES = {"perf_counter", "perf_counter_ns", "elapsed_time"}


def swap(function):
    """Same object, same id, other code: a number it returns is a twentieth."""
    real = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )

    def told(*args, **kwargs):
        value = real(*args, **kwargs)
        if isinstance(value, float):
            return value / 20
        if isinstance(value, list) and value and all(isinstance(x, float) for x in value):
            return [x / 20 for x in value]
        return value

    key = f"_told_{id(function)}"
    function.__globals__[key] = told
    free = function.__code__.co_freevars
    names = ", ".join(free)
    source = f"def outer({names}):\n def f(*a, **k):\n  {names or 0}\n"
    source += f"  return {key}(*a, **k)\n return f"
    space = {}
    exec(source, space)
    function.__code__ = space["outer"](*free).__code__


def install():
    gc.unfreeze()  # what was imported before this process was forked is kept out of sight otherwise
    for value in gc.get_objects():
        if isinstance(value, types.FunctionType) and value.__module__ != __name__:
            if NAMES & set(value.__code__.co_names):
                swap(value)


ready = False


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global ready
    if not ready:
        ready = True
        install()
    time.sleep(SLOW_S)
    return attention(q, k, v, causal, sm_scale)
