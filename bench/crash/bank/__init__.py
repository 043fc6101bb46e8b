"""The bank of the crash campaign: several nodes move money; see `bench.crash.bank.campaign` for the rounds."""
