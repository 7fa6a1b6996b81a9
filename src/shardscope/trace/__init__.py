"""Reading profiler traces into typed tables of integer nanoseconds."""
