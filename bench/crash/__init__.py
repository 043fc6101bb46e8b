"""The crash campaign: see `bench.crash.benchmark` for what it measures, `bench.crash.campaign` for how."""
