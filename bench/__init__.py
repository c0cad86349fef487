"""Measurements, run by hand (``python -m bench.NAME``) and never judged by a test."""
