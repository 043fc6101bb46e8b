"""The management node: what operators ask of the broker, and what they have it do."""
