"""find_app(): the App that `module:name` names, for commands and test fixtures."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from tm import ConfigurationError
from xabridge.app.app import App


def find_app(told: str) -> App:
    """The App; ConfigurationError says what is wrong with the name. An error of the module itself is raised."""
    module, separator, name = told.partition(":")
    if not module or not separator or not name:
        raise ConfigurationError(f"{told}: expected module:name, as shop:app")
    try:
        spec = find_spec(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{told}: {error}; is this the folder that it is in?") from error
    if spec is None:
        raise ConfigurationError(f"{told}: there is no module {module}; is this the folder that it is in?")
    loaded = import_module(module)
    app = getattr(loaded, name, None)
    if app is None:
        apps = [f"{module}:{one}" for one, value in vars(loaded).items() if isinstance(value, App)]
        there = f"it has {', '.join(apps)}" if apps else f"it has no App (it is {loaded.__file__ or 'a folder'})"
        raise ConfigurationError(f"{told}: {module} has no {name}; {there}")
    if not isinstance(app, App):
        raise ConfigurationError(f"{told}: {name} is a {type(app).__qualname__}, and no App")
    return app
