"""The two-phase commit of one global transaction: the algorithm, the ports it works through, and who runs it."""
