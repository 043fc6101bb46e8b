"""Web frameworks: `xabridge.frameworks.fastapi` for FastAPI, `xabridge.frameworks.django` for Django. Each is imported
by whoever uses it, and needs the framework."""
