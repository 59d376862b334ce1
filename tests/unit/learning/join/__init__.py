"""Tests of `service.learning.join`."""
