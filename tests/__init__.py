"""This package holds the tests. They are packages so that two modules may have the same name and tests can import
shared code.
"""
