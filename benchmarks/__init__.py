"""Speed and memory of the analysis on large traces, beside HolisticTraceAnalysis."""
