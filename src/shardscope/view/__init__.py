"""Seeing a run: one Perfetto trace of all ranks, and a viewer for it that works offline."""
