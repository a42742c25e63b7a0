"""Triton kernels and how they are launched; nothing else in the engine imports triton."""
