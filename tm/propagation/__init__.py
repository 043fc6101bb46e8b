"""The decorator `@tm.transactional`: see `tm.propagation.decorator`."""

from tm.propagation.call import Propagation
from tm.propagation.decorator import transactional

__all__ = ["Propagation", "transactional"]
