"""Noise for draws on the device."""
