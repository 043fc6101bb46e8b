"""Web frameworks: `xabridge.frameworks.fastapi` for FastAPI, `xabridge.frameworks.django` for Django. Each is imported
by its user, and needs the framework."""
