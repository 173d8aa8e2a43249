"""CUDA submissions in the worker: compile, describe and launch the kernels of a .cu."""
