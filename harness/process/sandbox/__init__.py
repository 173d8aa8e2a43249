"""Walls around a process that runs somebody's code: namespaces, Landlock, seccomp, quotas."""
