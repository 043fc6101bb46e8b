"""Measures others at the same work, beside us: `python -m bench peers`."""
