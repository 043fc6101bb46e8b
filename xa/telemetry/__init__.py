"""The ground of telemetry, for whoever is measured, asked for its health, or writes a log.

`metric` says what a metric is, `exposition` shows the metrics of a process to Prometheus, `endpoint` answers probes and
scrapes over HTTP, `log_lines` writes log lines as text or JSON. Not loaded by `import xa`.
"""
