"""This module holds the examples of docs/wire.md: for each name the value, and the catalogue that encodes it."""

from __future__ import annotations

from typing import Any

from dtx.amqp.encoding import encode
from dtx.amqp.messages import request_message, response_message, value_message
from dtx.amqp.values import Array, Described, Symbol, Ulong
from dtx.protocol.capabilities import DISTRIBUTED, END_AND_PREPARE, LOCAL, MULTI_SSNS, MULTI_TXNS
from dtx.protocol.commands import (
    CONTROL,
    COORDINATION,
    Commit,
    Complete,
    Declare,
    Discharge,
    End,
    Fence,
    Forget,
    GetTimeout,
    Prepare,
    Recover,
    RecoveredState,
    Rollback,
    SetTimeout,
    Start,
)
from dtx.protocol.conditions import Refusal
from dtx.protocol.replies import DECLARED, Details, Holding, Recovered, Result, Timeout, encode_reply
from xa import Code, Xid

XID = Xid(0x58414231, b"orders-1\x00\x07", b"broker")
SMALL = Xid(1, b"g", b"b")

CONTROLLERS = Described(Ulong(0x30), [Array([Symbol(DISTRIBUTED)])])
RESOURCES = Described(Ulong(0x30), [Array(map(Symbol, (LOCAL, MULTI_TXNS, MULTI_SSNS, DISTRIBUTED, END_AND_PREPARE)))])
CONTROL_EXAMPLES: dict[str, Any] = {
    "declare, local": Declare(),
    "declare, new branch": Declare(Start(XID)),
    "declare, join": Declare(Start(SMALL, join=True)),
    "declare, resume": Declare(Start(SMALL, resume=True)),
    "declare, txn-id and timeout given": Declare(Start(SMALL, txn_id=b"t1", timeout_s=30)),
    "discharge": Discharge(b"\x00\x00\x00\x01"),
    "discharge, fail": Discharge(b"\x00\x00\x00\x01", fail=True),
    "end, suspend": End(b"\x00\x00\x00\x01", suspend=True),
    "end, prepare": End(b"\x00\x00\x00\x01", prepare=True),
}
COMMAND_EXAMPLES: dict[str, Any] = {
    "prepare": Prepare(SMALL),
    "prepare, the branch that the session runs": Prepare(),
    "prepare, keep": Prepare(SMALL, keep=True),
    "prepare, with messages that are given back": Prepare(SMALL, keep=True, failed=(0, 7), released=(3,)),
    "commit": Commit(SMALL),
    "commit, one-phase": Commit(SMALL, one_phase=True),
    "rollback": Rollback(SMALL),
    "forget": Forget(SMALL),
    "recover, everything": Recover(),
    "recover, second page with filters and details": Recover(
        SMALL, 100, b"orders-1\x00", (RecoveredState.PREPARED,), details=True
    ),
    "set-timeout": SetTimeout(30, SMALL),
    "get-timeout": GetTimeout(SMALL),
    "complete": Complete(SMALL, commit=True),
    "fence": Fence(1, b"g"),
}
REPLY_EXAMPLES: dict[str, Any] = {
    "xa-result, ok": Result(Code.XA_OK),
    "xa-result, rdonly": Result(Code.XA_RDONLY),
    "recovered": Recovered((SMALL,)),
    "recovered, with details": Recovered(
        (SMALL,),
        more=True,
        details=(Details(SMALL, RecoveredState.PREPARED, 1_700_000_000_000, "shop", (Holding("orders", 1, 0),)),),
    ),
    "timeout": Timeout(30),
    "error": Refusal("amqp:not-found", "there is no such branch", Code.XAER_NOTA, SMALL),
}


def octets() -> dict[str, bytes]:
    """Every example, encoded."""
    found = {name: CONTROL.encode(value) for name, value in CONTROL_EXAMPLES.items()}
    found |= {name: COORDINATION.encode(value) for name, value in COMMAND_EXAMPLES.items()}
    found |= {name: encode_reply(value) for name, value in REPLY_EXAMPLES.items()}
    found["a message on the control link"] = value_message(CONTROL.encode(Declare()))
    found["coordinator, as the controller's target"] = encode(CONTROLLERS)
    found["coordinator, as the resource's answer"] = encode(RESOURCES)
    found["declared"] = encode(Described(Ulong(DECLARED), [b"\x00\x00\x00\x01"]))
    found["a request"] = request_message(COORDINATION.encode(Rollback(SMALL)), "$reply/1/2", b"\x01")
    found["a response"] = response_message(encode_reply(Result(Code.XA_OK)), b"\x01")
    return found
