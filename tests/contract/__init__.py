"""Statements that hold of every implementation of an interface."""
