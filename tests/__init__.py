"""Tests: unit, and integration on real servers."""
