"""What runs under torchrun: paired timing, request latency, memory, parity, profiled steps. See launch.run_strategy."""
