"""What a pipeline remembers beside the decisions in its log: who has it, its epochs, and each query's last batch."""
