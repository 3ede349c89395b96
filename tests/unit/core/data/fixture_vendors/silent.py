"""Implements no hook."""
