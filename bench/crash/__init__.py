"""The crash campaign: `bench.crash.benchmark` says what it measures, `bench.crash.campaign` how."""
