"""The demo: the shop and the pipeline, with their services, in processes of this machine."""
