"""The tests. Packages, so that modules of the same name can be apart and shared code can be imported."""
