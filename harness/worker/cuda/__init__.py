"""A plain .cu file as a submission: NVRTC compiles it, the driver launches it.

    instances     the launch section: defaults, kernel instances, arithmetic
    nvrtc         .cu -> cubins in a cache; no GPU
    launch        cubins on a device, TMA descriptors, prepared launches

These three import nothing of the harness but one another, beside the list of compiler flags: they
run next to code nobody vouches for.
"""
