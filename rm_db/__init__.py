"""Database resource managers."""
