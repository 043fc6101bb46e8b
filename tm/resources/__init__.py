"""Resources: the resource managers that a manager works with, under their names, and their part in transactions."""

from tm.resources.resource import Mode, Resource, ResourceConfig, ends_late, find_factory, is_decider
from xa.configuration import ConfigurationError

__all__ = ["ConfigurationError", "Mode", "Resource", "ResourceConfig", "ends_late", "find_factory", "is_decider"]
