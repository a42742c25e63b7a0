"""Moving KV between the instances of a split: shared memory, CUDA IPC, TCP. No torch, no decisions."""
