"""Tests that open nothing."""
