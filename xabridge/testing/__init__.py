"""What tests need: brokers and databases in processes, and the reference resource manager."""
