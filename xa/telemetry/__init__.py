"""The base of telemetry: metrics, health, logs.

`metric` says what a metric is, `exposition` shows the metrics of a process to Prometheus, `endpoint` answers probes and
scrapes over HTTP, `log_lines` writes log lines as text or JSON. Not loaded by `import xa`.
"""
