"""Applications: consumers and functions that are declared, and run when the App does. See `xabridge.app.app`."""

from xabridge.app.app import App
from xabridge.app.codec import Codec, JsonCodec
from xabridge.app.conversion import MessageUnfit
from xabridge.app.declarations import DeclaredConsumer, Router
from xabridge.app.dependencies import Depends
from xabridge.app.tx import Tx

__all__ = ["App", "Codec", "DeclaredConsumer", "Depends", "JsonCodec", "MessageUnfit", "Router", "Tx"]
