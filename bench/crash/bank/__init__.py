"""The bank of the crash campaign, in which several nodes move money: see `bench.crash.bank.campaign` for the rounds."""
