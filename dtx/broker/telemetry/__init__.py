"""The broker's telemetry: its metrics as data, its figures at a moment, instruments, and the pages for probes."""
