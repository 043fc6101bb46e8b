"""The ledger of a pipeline records, beside the decisions in its log, its driver, its epochs, and each query's last
batch."""
