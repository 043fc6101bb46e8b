"""The console: a page in a browser that shows whether work flows, whether anything is stuck, whether anything fails.

`xabridge console` runs it. It needs the extra `console`. docs/console.md is its manual, and docs/decisions/0037 says
why it is built as it is.

A request comes through `security` (hosts, headers, form tokens) and `sessions` to a page in `pages`. The page asks the
brokers over the management connections of its session (`brokers`), so that each broker decides what its user may see
and do. Transactions in doubt are seen and finished with the functions of `xabridge recover` (`site_watch`).
"""
